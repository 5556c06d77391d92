// From how many tokens a step on hides its transfers and its update, for every way of keeping the states: a forecast.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/hide_forecast.h"

namespace strata::bench {

struct HideBenchOptions {
  Machine machine;
  ModelShape model;
  bool recompute = true;
};

// {"machine": {..}, "parameters", "recompute": bool, "forecast": true, "rows": [{"states_bytes", "master", "moments",
//  "states": "ram|nvme", "weights": "ram|nvme", "site": "cpu|streamed|resident", "clipping": bool, "ram_needed",
//  "fits": bool, and where it fits "tokens", "step_seconds" at that many, "cached", "resident", "update_seconds",
//  "forward_bound", "backward_bound": what each phase waits for just below it}]}
// Throws: ConfigError for a rate or a size that is not positive.
nlohmann::json run_hide_bench(const HideBenchOptions& options);

// A Markdown table: thousands of tokens.
std::string format_hide_bench(const nlohmann::json& result);

}  // namespace strata::bench
