// T_hide: the fewest tokens a step whose computing hides what offloading adds.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace strata::bench {

// A step counts as hidden that takes at most this much of its computing alone.
inline constexpr double kHiddenRatio = 1.1;

struct HidePoint {
  std::int64_t tokens = 0;
  double ratio = 0;  // step / its computing alone
};

struct HideEstimate {
  enum class Bound : std::uint8_t { Between, AtMost, MoreThan } bound = Bound::Between;
  double tokens = 0;  // estimated between two points; or the fewest, or the most, that were measured
};
std::string_view name_of(HideEstimate::Bound bound);  // "between", "at most", "more than"

// What offloading adds changes little with the tokens while computing grows with them, so between two points the ratio
// is taken as linear in 1 / tokens, which is exact where it adds a constant time. Requires: points is not empty.
HideEstimate estimate_t_hide(std::vector<HidePoint> points);

// Measures from `start` on, doubling or halving within [least, most], until one step is hidden and its neighbour is
// not. `measure` returns the ratio, or nothing where so many tokens do not fit. Requires: least <= start <= most; the
// first one fits.
std::vector<HidePoint> measure_t_hide(std::int64_t start, std::int64_t least, std::int64_t most,
                                      const std::function<std::optional<double>(std::int64_t)>& measure);

}  // namespace strata::bench
