#include "engine/doctor_drives.h"

#include <fcntl.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>

#include "core/buffer.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/optimizer_config.h"
#include "engine/machine.h"
#include "nvme/device_profile.h"
#include "nvme/file_descriptor.h"
#include "nvme/swap_file.h"
#include "nvme/uring_backend.h"

namespace strata::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kProbeBytes = std::size_t{64} << 10;
// Parameters that the drive must have room for before it is worth having: the narrowest states of a small model.
constexpr std::uint64_t kLittleDisk = std::uint64_t{1} << 30;
// Parameters whose bf16 weights and states of that kind so many bytes hold.
std::string billions(double bytes, const OptimizerConfig& states) {
  const double each = static_cast<double>(bytes_of(DType::BF16)) + state_bytes_per_element(states, DType::BF16);
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", bytes / each / 1e9);
  return text;
}

std::string kernel_release() {
  utsname name{};
  return ::uname(&name) == 0 ? name.release : "unknown";
}

// One read through `ring`. Throws: IoError.
void read_through(nvme::UringBackend& ring, int fd, std::span<std::byte> memory, const char* file) {
  ring.submit({.op = nvme::IoOp::Read, .fd = fd, .data = memory.data(), .bytes = memory.size(), .token = 1});
  std::array<nvme::IoCompletion, 1> done;
  while (ring.complete(done) == 0) {
  }
  const std::int64_t result = done[0].result;
  if (result > 0) return;
  throw IoError(
      {static_cast<int>(-result), "read through io_uring", file, 0, memory.size(), "runs use threads instead"});
}

// Writes and reads a little of an anonymous file as a store would. Throws: IoError, ConfigError.
bool probe_direct(const fs::path& folder) {
  nvme::SwapFile file(folder, nvme::IoMode::Direct);
  Budget budget("doctor", kProbeBytes);
  const Buffer buffer = allocate_host(budget, kProbeBytes, MemoryTag::Staging);
  std::memset(buffer.data(), 0x5a, kProbeBytes);
  const auto at = static_cast<off_t>(file.take(kProbeBytes, "doctor"));
  if (::pwrite(file.fd(), buffer.data(), kProbeBytes, at) != static_cast<ssize_t>(kProbeBytes)) {
    throw IoError({errno, "write", folder.string(), 0, kProbeBytes, ""});
  }
  std::memset(buffer.data(), 0, kProbeBytes);
  if (::pread(file.fd(), buffer.data(), kProbeBytes, at) != static_cast<ssize_t>(kProbeBytes)) {
    throw IoError({errno, "read", folder.string(), 0, kProbeBytes, ""});
  }
  const auto same = [](std::byte byte) { return byte == std::byte{0x5a}; };
  if (!std::all_of(buffer.span().begin(), buffer.span().end(), same)) {
    throw CorruptionError(folder.string() + " does not give back what was written to it");
  }
  return file.mode() == nvme::IoMode::Direct;
}

std::string whole_file(const char* path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// mountinfo writes blanks, line ends and backslashes as three octal digits.
std::string unescaped(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      out += static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool is_below(const std::string& path, const std::string& mount) {
  return mount == "/" || path == mount || path.rfind(mount + "/", 0) == 0;
}

}  // namespace

Finding examine_io_uring() {
  const char* const file = "/proc/self/exe";
  Finding finding{.subject = "io_uring",
                  .text = "",
                  .facts = {{"kernel", kernel_release()}, {"liburing", nvme::liburing_version()}}};
  const std::string versions = "kernel " + kernel_release() + ", liburing " + std::string(nvme::liburing_version());
  try {
    Budget budget("doctor", kPageBytes);
    const Buffer buffer = allocate_host(budget, kPageBytes, MemoryTag::Staging);
    const nvme::FileDescriptor program(::open(file, O_RDONLY | O_CLOEXEC));
    if (program.get() < 0) throw IoError({errno, "open", file, 0, 0, ""});
    nvme::UringBackend ring({.entries = 2, .regions = {buffer.span()}});
    read_through(ring, program.get(), buffer.span(), file);
    finding.text = versions + ", ring mode " + nvme::name_of(ring.mode());
    finding.facts["ring"] = nvme::name_of(ring.mode());
    finding.facts["registers_buffers"] = ring.buffers_registered();
    if (!ring.buffers_registered()) {
      finding.verdict = Verdict::Slow;
      finding.text += ", takes no registered buffers";
      finding.advice = "costs processor time per request; raise the limit of locked memory (`ulimit -l unlimited`)";
    } else if (ring.mode() == nvme::RingMode::Plain) {
      finding.verdict = Verdict::Slow;
      finding.advice = "deferred rings need Linux 6.1; plain ones are interrupted more often";
    }
  } catch (const IoError& error) {
    finding.verdict = Verdict::Missing;
    finding.text = "not usable: " + std::string(error.what()) + " (" + versions + ")";
    finding.advice = "drives are served by threads: the same results for more processor time per request";
  }
  finding.facts["usable"] = finding.verdict != Verdict::Missing;
  return finding;
}

std::vector<Finding> examine_folder(const fs::path& folder) {
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (!fs::exists(status)) throw ConfigError(folder.string() + " does not exist; name a folder on the drive");
  if (!fs::is_directory(status)) throw ConfigError(folder.string() + " is not a folder; name one on the drive");
  const fs::path real = fs::canonical(folder);
  const std::string type = file_system_of(real, whole_file("/proc/self/mountinfo"));
  std::vector<Finding> found;
  try {
    found.push_back(examine_file_system(real.string(), type, probe_direct(real), nvme::load_profile(real).has_value()));
  } catch (const Error& failed) {
    found.push_back({.subject = "drive " + real.string(),
                     .verdict = Verdict::Missing,
                     .text = "cannot be used: " + std::string(failed.what()),
                     .advice = "name a folder that this user may write in",
                     .facts = {{"folder", real.string()}, {"file_system", type}}});
  }
  found.push_back(examine_free_space(real.string(), free_disk_bytes(real)));
  return found;
}

std::string file_system_of(const fs::path& path, std::string_view mountinfo) {
  std::istringstream lines{std::string(mountinfo)};
  std::string type, longest;
  for (std::string line; std::getline(lines, line);) {
    // "36 35 98:0 /root /mount options [optional ...] - type source super"
    std::istringstream words(line);
    std::string word, mount, kind;
    for (int i = 0; i < 5 && words >> word; ++i) mount = word;
    while (words >> word && word != "-") {
    }
    if (!(words >> kind)) continue;
    mount = unescaped(mount);
    // A later mount on the same place hides the earlier one.
    if (is_below(path.string(), mount) && mount.size() >= longest.size()) {
      longest = mount;
      type = kind;
    }
  }
  return type;
}

Finding examine_file_system(const std::string& folder, const std::string& type, bool direct, bool tuned) {
  Finding finding{.subject = "drive " + folder,
                  .text = (type.empty() ? "unknown file system" : type) + (direct ? ", O_DIRECT" : ", no O_DIRECT") +
                          (tuned ? ", measured" : ", not measured"),
                  .facts = {{"folder", folder}, {"file_system", type}, {"o_direct", direct}, {"measured", tuned}}};
  static constexpr std::array kMemory = {"tmpfs", "ramfs"};
  static constexpr std::array kRemote = {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "virtiofs"};
  const auto is_one_of = [&](const auto& names) { return std::find(names.begin(), names.end(), type) != names.end(); };
  if (is_one_of(kMemory)) {
    finding.verdict = Verdict::Slow;
    finding.advice = "this is memory: what goes there counts twice; name a folder on a drive";
  } else if (is_one_of(kRemote) || type.rfind("fuse", 0) == 0) {
    finding.verdict = Verdict::Slow;
    finding.advice = "not a drive of this machine: a step waits for the network or another process; name a local one";
  } else if (!direct) {
    finding.verdict = Verdict::Slow;
    finding.advice = "reads and writes go through the page cache, which costs a copy and takes RAM; use ext4 or XFS";
  } else if (!tuned) {
    finding.advice = "`strata tune --nvme " + folder + "` measures it once; until then request sizes are a guess";
  }
  return finding;
}

Finding examine_free_space(const std::string& folder, std::uint64_t bytes) {
  const auto room = static_cast<double>(usable_of_free(bytes));
  Finding finding{.subject = "space in " + folder,
                  .text = format_bytes(bytes) + " free: weights and states of " + billions(room, {}) +
                          " B parameters with fp32 states, " +
                          billions(room, {.master = MasterEncoding::Remainder, .moments = MomentEncoding::Block8}) +
                          " B with narrow ones",
                  .facts = {{"folder", folder}, {"free_bytes", bytes}}};
  if (bytes < kLittleDisk) {
    finding.verdict = Verdict::Missing;
    finding.advice = "too little to move anything there; free some";
  }
  return finding;
}

}  // namespace strata::engine
