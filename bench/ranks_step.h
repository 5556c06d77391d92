// A training step of several ranks: what it takes, what each rank holds, and what it sends.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "bench/bench_step.h"

namespace strata::bench {

// Steps of all ranks, alternating with the same model's computing alone, which all ranks do at the same time, each for
// itself. Every rank calls it and gets the same result. A time is that of the slowest rank; medians over the rounds.
//
// {"ranks", "zero_stage", "micro_batches", "accumulation", "held_layers", "parameters", "elements": padding included,
//  "tokens": of a step, all ranks, "rounds", "description", "recomputed_layers",
//  "total_seconds", "total_mad", "compute_seconds", "exposed_seconds": total less computing alone of the same round,
//  "exposed_mad", "ratio_to_compute", "ratio_to_compute_mad", "collective_seconds": in which collectives were running,
//  beside computing where the schedule allows it,
//  "step": {"seconds", "forward", "backward", "optimizer", "stall", ...} of this rank,
//  "per_rank": [{"held": {"device", "host", "nvme"}: most bytes that the engine had at once, "states_bytes": of
//  weights,
//    gradients and optimizer states, "sent": {"all", "node", "across"}: bytes of a step, counted: to all ranks, inside
//    the node, between nodes, "collective_seconds", "peak_rss_bytes": of the process while it took steps and nothing
//    else}],
//  "planned": {"held", "sent"} of this rank, "published": {"states_bytes", "sent_bytes"} (published_bytes.h),
//  "sent_bytes" null where savings for slow links or hybrid sharding change the formula,
//  "peak_rss_bytes": the largest}
// Throws: ConfigError, OutOfBudget, IoError, CommError.
nlohmann::json measure_ranks_step(const engine::EngineConfig& config, const StepMeasuring& measuring);
std::string format_ranks_step(const nlohmann::json& result);

}  // namespace strata::bench
