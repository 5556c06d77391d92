// What several steps took.
#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "engine/engine.h"

namespace strata::bench {

// Medians: {"seconds", "forward", "backward", "optimizer", "stall", "nvme_read_bytes", "nvme_written_bytes": of the
// last step}. Requires: at least one step.
nlohmann::json summary_of(const std::vector<engine::StepSummary>& steps);

}  // namespace strata::bench
