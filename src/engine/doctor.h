// What this machine can do for a run, what will be slow on it and why.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cpu_adam/isa.h"
#include "engine/cuda_plugin.h"

namespace strata::engine {

enum class Verdict : std::uint8_t {
  Ok,
  Slow,     // works, and costs time that another machine or setting would save
  Missing,  // cannot be used; runs do without
};
std::string_view name_of(Verdict verdict);  // "ok", "slow", "missing"

struct Finding {
  std::string subject;  // "io_uring", "GPU 0", "drive /mnt/nvme"
  Verdict verdict = Verdict::Ok;
  std::string text;         // what there is
  std::string advice = "";  // what it costs and what to do; empty where there is nothing to do
  nlohmann::json facts = nlohmann::json::object();
};

// Reads and probes the machine, with a few tens of milliseconds of matrix products, a file of 64 KiB in each of
// `folders` that is gone afterwards, and the CUDA plug-in loaded. What a machine lacks is a finding.
// Throws: ConfigError when one of `folders` is no folder.
std::vector<Finding> examine_machine(const std::vector<std::filesystem::path>& folders);

// What the findings say of what was read.
std::vector<Finding> examine_gpus(const CudaDevices& devices, const std::function<cuda::DeviceFacts(int)>& facts_of);

struct Nccl {
  bool built_in = false;     // into the CUDA plug-in
  std::string version = "";  // "2.28.9"; empty where it does not say
};
Finding examine_nccl(const Nccl& nccl, int gpus);

struct Ram {
  std::uint64_t total = 0;
  std::uint64_t available = 0;
  std::optional<std::uint64_t> limit = {};  // of the memory cgroup
};
Finding examine_ram(const Ram& ram);
Finding examine_swap(std::uint64_t total, std::uint64_t used);
// `limit`: nothing for unlimited. `exempt`: CAP_IPC_LOCK, so that the limit does not hold.
Finding examine_locked_memory(std::optional<std::uint64_t> limit, bool exempt, std::uint64_t available_ram);

struct HugePages {
  std::uint64_t free = 0;        // of the reserve
  std::uint64_t bytes = 0;       // of one
  std::string transparent = "";  // "always", "madvise", "never"; empty where the kernel does not say
};
Finding examine_huge_pages(const HugePages& pages);
Finding examine_cpus(std::size_t usable, std::size_t online, cpu_adam::Isa isa);
// fp32 matrix products per second over those in bf16.
Finding examine_products(double fp32_over_bf16);

}  // namespace strata::engine
