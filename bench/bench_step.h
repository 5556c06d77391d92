// Question: how much of a training step with parameters and optimizer states on NVMe is waiting, beside the same step
// in memory?
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

namespace strata::bench {

struct StepBenchOptions {
  std::filesystem::path dir;  // for the swap file and the model's config.json
  std::int64_t hidden = 512;
  std::int64_t layers = 8;
  std::int64_t vocab = 8192;
  std::int64_t tokens = 256;  // of one step
  std::int64_t rounds = 5;
  std::uint64_t host_budget = 0;  // 0: little more than the smallest, so that nothing is cached
};

// A Llama of random weights takes alternating steps with everything in memory and with parameters and optimizer states
// on NVMe, in one process; the same batch, the same bits. Medians over the rounds, the first one left out.
// {"parameters", "tokens", "memory": {"seconds", "forward", "backward", "optimizer", "stall"}, "nvme": the same with
//  "read_bytes", "written_bytes", "ratio": nvme / memory, "ratio_mad", "exposed_seconds", "bits_equal"}.
// Throws: ConfigError, OutOfBudget, IoError.
nlohmann::json run_step_bench(const StepBenchOptions& options);
std::string format_step_bench(const nlohmann::json& result);

}  // namespace strata::bench
