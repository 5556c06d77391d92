// Question: how much of a training step with parameters and optimizer states on NVMe is waiting, beside the same step
// in memory?
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "core/optimizer_config.h"

namespace strata::bench {

struct StepBenchOptions {
  std::filesystem::path dir;  // for the swap file and the model's config.json
  std::int64_t hidden = 576;  // with layers and vocab: 148 million parameters, nearly the shape of SmolLM2-135M
  std::int64_t inner = 0;     // of the feed-forward block; 0: 8/3 of hidden
  std::int64_t layers = 30;
  std::int64_t heads = 0;     // 0: of 64 elements each
  std::int64_t kv_heads = 0;  // 0: as many
  std::int64_t vocab = 49152;
  std::int64_t tokens = 256;  // of one step
  std::int64_t rounds = 5;
  OptimizerConfig optimizer;
  std::uint64_t host_budget = 0;  // 0: what gradients need and page_bytes, so that next to nothing is cached
  std::uint64_t page_bytes = std::uint64_t{48} << 20;  // for reading ahead and writing behind
  std::filesystem::path trace;                         // where a Chrome trace of the NVMe steps goes; empty: none
};

// A Llama of random weights takes alternating steps with everything in memory and with parameters and optimizer states
// on NVMe, in one process; the same batch, the same bits. Medians over the rounds, the first one left out.
// {"parameters", "tokens", "memory": {"seconds", "forward", "backward", "optimizer", "stall"}, "nvme": the same with
//  "read_bytes", "written_bytes", "ratio": nvme / memory, "ratio_mad", "exposed_seconds", "drive_rates": bytes per
//  second of the drive alone, measured before, "ideal_seconds": the larger of the processor's time in memory and the
//  drive's time for the bytes moved, "binding_link", "ratio_to_ideal", "optimum_seconds": the least while the update
//  waits for the norm, "ratio_to_optimum", "in_flight_during_compute": {"read", "write"}: share of the time with
//  requests in flight during which a layer was computed, "bits_equal"}.
// Throws: ConfigError, OutOfBudget, IoError.
nlohmann::json run_step_bench(const StepBenchOptions& options);
std::string format_step_bench(const nlohmann::json& result);

}  // namespace strata::bench
