// Question: what does a training step cost beyond its computing, where states are not in memory?
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include <nlohmann/json.hpp>

#include "engine/engine_config.h"

namespace strata::bench {

struct StepBenchOptions {
  std::filesystem::path dir;  // for the swap file and the model's config.json
  std::int64_t hidden = 576;  // with layers and vocab: 148 million parameters, nearly the shape of SmolLM2-135M
  std::int64_t inner = 0;     // of the feed-forward block; 0: 8/3 of hidden
  std::int64_t layers = 30;
  std::int64_t heads = 0;     // 0: of 64 elements each
  std::int64_t kv_heads = 0;  // 0: as many
  std::int64_t vocab = 49152;
  std::int64_t tokens = 256;   // of one micro-batch
  std::int64_t positions = 0;  // that the model allows, at least `tokens`
  // Optimizer, recomputed layers, micro-batches, ZeRO stage and ranks; the rest follows from the other options.
  engine::EngineConfig engine;
  std::uint64_t host_budget = 0;  // 0: what gradients need and page_bytes, so that next to nothing is cached
  std::uint64_t page_bytes = std::uint64_t{48} << 20;  // for reading ahead and writing behind
};

// Runs what it is given, and returns what that returns. Where there are several ranks, an engine that outlives a
// failure waits for collectives that will never end, unless the failure is told before: cli/rank_job.h.
using Guard = std::function<int(const std::function<int()>&)>;
inline int unguarded(const std::function<int()>& body) {
  return body();
}

// How a step is measured, whatever it is.
struct StepMeasuring {
  std::int64_t rounds = 5;
  std::filesystem::path trace{};  // where a Chrome trace of the steps goes; empty: none
  bool hide = false;              // look for T_hide as well, which takes several times as long; one rank only
  Guard guard = unguarded;
};

// A Llama of random weights takes alternating steps as configured and with everything in memory, for its computing
// alone; in one process, with the same batch, products and recomputed layers, so the same bits. Medians over the
// rounds, the first one left out. The first form: that of the options, with parameters and optimizer states on NVMe.
// The second: the model (its config.json; weights are random), batch, homes, states and budgets of `config`, which may
// be that of a run. With several ranks all call it, and what follows is replaced by what ranks_step.h says.
//
// {"parameters", "tokens": of a step, "rounds", "description",
//  "memory": {"seconds", "forward", "backward", "optimizer", "stall"}, "step": the same as configured, with
//    "nvme_read_bytes", "nvme_written_bytes" of the last step, counted,
//  "total_seconds": of "step", "compute_seconds": forward and backward of "memory", "exposed_seconds": total less
//    computing alone of the same round, "recomputed_layers",
//  "nvme_bytes_per_parameter": {"read", "written"}, "uncached_bytes": {"read", "written"}: what a step would move if
//    nothing stayed in memory, "cached_share": of that, what did not travel; below 0 where pages travelled more often;
//    null without a drive,
//  "peak_rss_bytes": of the process while it took steps as configured and nothing else,
//  "ratio": step / memory, "ratio_mad", "ratio_to_compute", "ratio_to_compute_mad", "bits_equal",
//  with one drive, else null: "drive_rates": {"read", "write", "mixed"}, bytes per second of the drive alone, measured
//    before, "ideal_seconds": the larger of the processor's time in memory and the drive's time for the bytes moved,
//    "binding_link", "ratio_to_ideal", "ratio_to_ideal_mad", "optimum_seconds": the least while the update waits for
//    the norm, "ratio_to_optimum", "ratio_to_optimum_mad", "in_flight_during_compute": {"read", "write"}: share of the
//    time with requests in flight during which a layer was computed,
//  "t_hide": null, or where asked for {"tokens": the fewest with step <= 1.1 x computing, "bound": "between", "at
//  most",
//    "more than", "points": [{"tokens", "ratio"}]}}
// Throws: ConfigError, OutOfBudget (also where the same model in memory does not fit), IoError.
nlohmann::json run_step_bench(const StepBenchOptions& options, const StepMeasuring& measuring);
nlohmann::json run_step_bench(const engine::EngineConfig& config, const StepMeasuring& measuring);
std::string format_step_bench(const nlohmann::json& result);

}  // namespace strata::bench
