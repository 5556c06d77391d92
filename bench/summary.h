// How a bench reports what it measured in several rounds.
#pragma once

#include <algorithm>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/statistics.h"

namespace strata::bench {

// {"median", "mad", "worst"}: the worst is the least. Requires: values is not empty.
inline nlohmann::json summary(const std::vector<double>& values) {
  return {{"median", median(values)}, {"mad", mad(values)}, {"worst", *std::min_element(values.begin(), values.end())}};
}

}  // namespace strata::bench
