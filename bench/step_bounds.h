// What a step could take at best on one drive.
#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "engine/ideal.h"

namespace strata::bench {

// Adds "drive_rates", "ideal_seconds", "binding_link", "ratio_to_ideal", "optimum_seconds" and "ratio_to_optimum" with
// their MADs to `result`: medians over rounds of `memory`, the same steps with everything in memory, and `steps`.
void add_bounds(const engine::Engine& engine, const engine::DriveRates& rates,
                const std::vector<engine::StepSummary>& memory, const std::vector<engine::StepSummary>& steps,
                nlohmann::json& result);

}  // namespace strata::bench
