#include "engine/doctor.h"

#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "core/bytes.h"
#include "core/error.h"
#include "core/parallel.h"
#include "engine/doctor_drives.h"
#include "engine/machine.h"
#include "zero/torch_host.h"

namespace strata::engine {
namespace {

using namespace strata::literals;

// What the process takes beside its budgets, and a model of some size.
constexpr std::uint64_t kLittleRam = 4_GiB;
constexpr int kIpcLock = 14;  // CAP_IPC_LOCK, capabilities(7)

std::string first_line(const char* file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// "13.0" of 13000; empty for 0.
std::string cuda_version(int version) {
  return version == 0 ? "" : std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Asks a CUDA library that the plug-in brings along, which answers without a device.
int version_by(const char* function) {
  using GetVersion = int(int*);
  int version = 0;
  auto* const get = reinterpret_cast<GetVersion*>(cuda_plugin_symbol(function));
  return get != nullptr && get(&version) == 0 ? version : 0;
}

cuda::DeviceFacts facts_of_device(int device) {
  cuda::BackendOptions options;
  options.device = device;
  return open_cuda(options)->facts();
}

struct CudaVersions {
  int runtime = 0;
  int driver = 0;
};

CudaVersions read_cuda_versions(const CudaDevices& devices) {
  try {
    if (devices.count > 0) {
      const cuda::DeviceFacts facts = facts_of_device(0);
      return {facts.runtime_version, facts.driver_version};
    }
  } catch (const Error&) {  // the line of that GPU says why
  }
  return {version_by("cudaRuntimeGetVersion"), version_by("cudaDriverGetVersion")};
}

Finding examine_cuda(const CudaDevices& devices) {
  const bool loads = cuda_plugin_symbol("strata_cuda_open") != nullptr;
  const CudaVersions versions = read_cuda_versions(devices);
  const std::string runtime = cuda_version(versions.runtime), driver = cuda_version(versions.driver);
  const std::string module = first_line("/proc/driver/nvidia/version");
  Finding finding{.subject = "CUDA",
                  .verdict = loads && !driver.empty() ? Verdict::Ok : Verdict::Missing,
                  .text = (loads ? "plug-in loads, runtime " + (runtime.empty() ? "unknown" : runtime)
                                 : "no plug-in (" + cuda_plugin_file() + "), so no runtime") +
                          (driver.empty() ? std::string(", no driver") : ", driver for CUDA up to " + driver)};
  if (!module.empty()) finding.text += " (" + module + ")";
  if (!loads) finding.advice = "build where nvcc is found, or name the library in STRATA_CUDA_PLUGIN";
  if (loads && driver.empty()) finding.advice = "install NVIDIA's driver; in a container, start it with the GPUs";
  finding.facts = {{"plugin", loads}, {"runtime", runtime}, {"driver", driver}, {"kernel_module", module}};
  return finding;
}

Nccl read_nccl() {
  Nccl nccl{.built_in = cuda_plugin_symbol("strata_make_nccl_backend") != nullptr};
  const int version = nccl.built_in ? version_by("ncclGetVersion") : 0;  // 22809 is 2.28.9
  if (version > 0) {
    nccl.version = std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
                   std::to_string(version % 100);
  }
  return nccl;
}

bool may_lock_everything() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("CapEff:", 0) == 0) return (std::stoull(line.substr(7), nullptr, 16) >> kIpcLock & 1) != 0;
  }
  return false;
}

Finding read_locked_memory() {
  rlimit limit{};
  const bool limited = ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return examine_locked_memory(limited ? std::optional<std::uint64_t>(limit.rlim_cur) : std::nullopt,
                               may_lock_everything(), available_ram_bytes());
}

Finding read_huge_pages() {
  HugePages pages{.free = meminfo("HugePages_Free").value_or(0), .bytes = meminfo("Hugepagesize").value_or(0)};
  const std::string modes = first_line("/sys/kernel/mm/transparent_hugepage/enabled");  // "always [madvise] never"
  const std::size_t open = modes.find('['), close = modes.find(']');
  if (open != std::string::npos && close != std::string::npos) {
    pages.transparent = modes.substr(open + 1, close - open - 1);
  }
  return examine_huge_pages(pages);
}

std::string fixed(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

}  // namespace

std::string_view name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::Ok:
      return "ok";
    case Verdict::Slow:
      return "slow";
    case Verdict::Missing:
      return "missing";
  }
  return "";
}

std::vector<Finding> examine_machine(const std::vector<std::filesystem::path>& folders) {
  std::vector<Finding> found;
  std::vector<Finding> drives;
  for (const auto& folder : folders) {  // first: a folder that is none ends it
    for (Finding& finding : examine_folder(folder)) drives.push_back(std::move(finding));
  }
  const CudaDevices devices = cuda_devices();
  found.push_back(examine_cuda(devices));
  for (Finding& gpu : examine_gpus(devices, facts_of_device)) {
    found.push_back(std::move(gpu));
  }
  found.push_back(examine_nccl(read_nccl(), devices.count));
  found.push_back(examine_cpus(usable_cpus(), static_cast<std::size_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN))),
                               cpu_adam::resolve_isa(cpu_adam::Isa::Auto)));
  found.push_back(examine_products(zero::fp32_speed_over(DType::BF16)));
  found.push_back(examine_ram({meminfo("MemTotal").value_or(0), available_ram_bytes(), ram_limit_bytes()}));
  const std::uint64_t swap = meminfo("SwapTotal").value_or(0);
  found.push_back(examine_swap(swap, swap - std::min(swap, meminfo("SwapFree").value_or(0))));
  found.push_back(read_huge_pages());
  found.push_back(read_locked_memory());
  found.push_back(examine_io_uring());
  for (Finding& drive : drives) found.push_back(std::move(drive));
  return found;
}

std::vector<Finding> examine_gpus(const CudaDevices& devices, const std::function<cuda::DeviceFacts(int)>& facts_of) {
  if (devices.count == 0) {
    return {{.subject = "GPU",
             .verdict = Verdict::Missing,
             .text = "none: " + devices.why_no_more,
             .advice = "runs take place on the processor, which is slow: for small models and tests"}};
  }
  std::vector<Finding> found;
  for (int device = 0; device < devices.count; ++device) {
    Finding& finding = found.emplace_back(Finding{.subject = "GPU " + std::to_string(device), .text = ""});
    try {
      const cuda::DeviceFacts facts = facts_of(device);
      const std::string capability = std::to_string(facts.major) + "." + std::to_string(facts.minor);
      finding.text = facts.name + ", capability " + capability + ", " + format_bytes(facts.free_bytes) + " of " +
                     format_bytes(facts.total_bytes) + " free, NUMA node " +
                     (facts.numa_node < 0 ? "unknown" : std::to_string(facts.numa_node));
      finding.facts = {{"name", facts.name},
                       {"capability", capability},
                       {"total_bytes", facts.total_bytes},
                       {"free_bytes", facts.free_bytes},
                       {"memory_bytes_per_second", facts.memory_bytes_per_second},
                       {"numa_node", facts.numa_node}};
      if (facts.free_bytes < facts.total_bytes / 2) {
        finding.verdict = Verdict::Slow;
        finding.advice = "other processes hold more than half of its memory, so less stays on it; end them";
      }
    } catch (const Error& error) {  // a device that is broken or taken must not hide the others
      finding.verdict = Verdict::Missing;
      finding.text = error.what();
      finding.advice = "choose other devices with CUDA_VISIBLE_DEVICES, or see what nvidia-smi says of it";
    }
  }
  if (!devices.why_no_more.empty()) {
    found.push_back({.subject = "GPU " + std::to_string(devices.count),
                     .verdict = Verdict::Missing,
                     .text = "not used: " + devices.why_no_more,
                     .advice = "where others come behind it, choose those with CUDA_VISIBLE_DEVICES"});
  }
  return found;
}

Finding examine_nccl(const Nccl& nccl, int gpus) {
  Finding finding{.subject = "NCCL",
                  .verdict = nccl.built_in && gpus > 0 ? Verdict::Ok : Verdict::Missing,
                  .text = "not in the CUDA plug-in",
                  .facts = {{"built_in", nccl.built_in}, {"version", nccl.version}}};
  if (nccl.built_in) {
    finding.text = "in the CUDA plug-in, version " + (nccl.version.empty() ? "unknown" : nccl.version);
    if (gpus == 0) finding.text += ", no GPU to use it on";
    if (gpus == 0) finding.advice = "ranks speak through Gloo";
  } else {
    finding.advice = "ranks speak through Gloo; for NCCL build with the CUDA toolkit, nccl.h and torch for CUDA";
  }
  return finding;
}

Finding examine_ram(const Ram& ram) {
  const bool limited = ram.limit && *ram.limit < ram.total;
  Finding finding{.subject = "RAM",
                  .text = format_bytes(ram.available) + " of " + format_bytes(ram.total) + " available" +
                          (limited ? ", control group's limit " + format_bytes(*ram.limit) : std::string()),
                  .facts = {{"total_bytes", ram.total}, {"available_bytes", ram.available}}};
  finding.facts["limit_bytes"] = limited ? nlohmann::json(*ram.limit) : nlohmann::json();
  if (ram.available < kLittleRam) {
    finding.verdict = Verdict::Slow;
    finding.advice = "little: hardly a page stays cached, so more goes to the drive; end other programs" +
                     std::string(limited ? " or raise the limit" : "");
  }
  return finding;
}

Finding examine_swap(std::uint64_t total, std::uint64_t used) {
  Finding finding{.subject = "swap",
                  .text = total == 0 ? "none" : format_bytes(used) + " of " + format_bytes(total) + " in use",
                  .facts = {{"total_bytes", total}, {"used_bytes", used}}};
  if (used > 1_GiB) {
    finding.verdict = Verdict::Slow;
    finding.advice =
        "memory was short already, and states that are swapped out come back one page fault at a time; lower "
        "strata.budgets.host or end other programs";
  }
  return finding;
}

Finding examine_locked_memory(std::optional<std::uint64_t> limit, bool exempt, std::uint64_t available_ram) {
  Finding finding{.subject = "locked memory",
                  .text = (limit ? "limit " + format_bytes(*limit) : std::string("unlimited")) +
                          (limit && exempt ? ", which does not hold for this user (CAP_IPC_LOCK)" : ""),
                  .facts = {{"exempt", exempt}}};
  finding.facts["limit_bytes"] = limit ? nlohmann::json(*limit) : nlohmann::json();
  if (limit && !exempt && *limit < available_ram) {
    finding.verdict = Verdict::Slow;
    finding.advice =
        "larger buffers of io_uring stay unregistered, which costs processor time per request, and pinned "
        "memory for a GPU may be refused; `ulimit -l unlimited`, or memlock in /etc/security/limits.conf";
  }
  return finding;
}

Finding examine_huge_pages(const HugePages& pages) {
  const bool transparent = pages.transparent == "always" || pages.transparent == "madvise";
  Finding finding{.subject = "huge pages",
                  .text = (pages.free > 0 ? std::to_string(pages.free) + " reserved ones free (" +
                                                format_bytes(pages.free * pages.bytes) + ")"
                                          : std::string("none reserved")) +
                          ", transparent ones: " + (pages.transparent.empty() ? "not known" : pages.transparent),
                  .facts = {{"reserved_free", pages.free}, {"transparent", pages.transparent}}};
  if (pages.free == 0 && !transparent) {
    finding.verdict = Verdict::Slow;
    finding.advice =
        "Adam and I/O on small pages cost more address translation; "
        "`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`, or reserve some with vm.nr_hugepages";
  }
  return finding;
}

Finding examine_cpus(std::size_t usable, std::size_t online, cpu_adam::Isa isa) {
  Finding finding{.subject = "CPUs",
                  .text = std::to_string(usable) + " usable of " + std::to_string(online) + ", vector code " +
                          std::string(cpu_adam::name_of(isa)),
                  .facts = {{"usable", usable}, {"online", online}, {"isa", cpu_adam::name_of(isa)}}};
  if (isa == cpu_adam::Isa::Scalar) {
    finding.verdict = Verdict::Slow;
    finding.advice =
        "the optimizer runs without vector instructions, several times slower: the processor has neither AVX2 "
        "with FMA nor NEON, or STRATA_ISA says scalar";
  } else if (usable == 1) {
    finding.verdict = Verdict::Slow;
    finding.advice = "copies, I/O, updates and computing take turns on one CPU; widen the affinity mask or the quota";
  }
  return finding;
}

Finding examine_products(double fp32_over_bf16) {
  const bool slow = fp32_over_bf16 >= zero::kUpcastPays;
  return {.subject = "bf16 products",
          .verdict = slow ? Verdict::Slow : Verdict::Ok,
          .text = slow ? "fp32 is " + fixed(fp32_over_bf16) + " times as fast on this processor"
                       : "native: " + fixed(1 / fp32_over_bf16) + " times the rate of fp32 on this processor",
          .advice = slow ? "on the processor weights are upcast and products run in fp32 (strata.compute); a GPU, "
                           "AVX512-BF16 or AMX would do bf16"
                         : "",
          .facts = {{"fp32_over_bf16", fp32_over_bf16}}};
}

}  // namespace strata::engine
