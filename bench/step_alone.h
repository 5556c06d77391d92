// Question: what does the step of a run take whose model fits nowhere whole, so that there is nothing to compare it
// with?
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "bench/bench_step.h"

namespace strata::bench {

// Takes steps as configured, one right after the other, with random weights and the same batch each time, after one
// that warms up. One rank only. measuring.rounds and trace count.
// {"parameters", "tokens", "rounds", "description", "recomputed_layers", "step": as run_step_bench, "losses": of each
//  step, "ideal_seconds", "ideal_fraction": ideal / seconds, "binding_link": medians of what the engine knows of the
//  busiest link, null while a rate is unknown, "to_device_bytes", "to_host_bytes": of the last step, "peak_rss_bytes"}
// Throws: ConfigError, OutOfBudget, IoError, DeviceError.
nlohmann::json run_step_alone(const engine::EngineConfig& config, const StepMeasuring& measuring);
std::string format_step_alone(const nlohmann::json& result);

}  // namespace strata::bench
