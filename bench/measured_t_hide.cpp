#include "bench/measured_t_hide.h"

#include <algorithm>

#include "core/error.h"

namespace strata::bench {

std::string_view name_of(HideEstimate::Bound bound) {
  switch (bound) {
    case HideEstimate::Bound::Between:
      return "between";
    case HideEstimate::Bound::AtMost:
      return "at most";
    case HideEstimate::Bound::MoreThan:
      return "more than";
  }
  return "";
}

HideEstimate estimate_t_hide(std::vector<HidePoint> points) {
  STRATA_EXPECTS(!points.empty(), "an estimate needs a measurement");
  std::sort(points.begin(), points.end(), [](const HidePoint& a, const HidePoint& b) { return a.tokens < b.tokens; });
  const auto hidden =
      std::find_if(points.begin(), points.end(), [](const HidePoint& p) { return p.ratio <= kHiddenRatio; });
  if (hidden == points.end()) return {HideEstimate::Bound::MoreThan, static_cast<double>(points.back().tokens)};
  if (hidden == points.begin()) return {HideEstimate::Bound::AtMost, static_cast<double>(hidden->tokens)};
  const HidePoint& before = *(hidden - 1);
  const double x0 = 1.0 / static_cast<double>(before.tokens);
  const double x1 = 1.0 / static_cast<double>(hidden->tokens);
  const double x = x0 + (x1 - x0) * (before.ratio - kHiddenRatio) / (before.ratio - hidden->ratio);
  return {HideEstimate::Bound::Between, 1.0 / x};
}

std::vector<HidePoint> measure_t_hide(std::int64_t start, std::int64_t least, std::int64_t most,
                                      const std::function<std::optional<double>(std::int64_t)>& measure) {
  std::vector<HidePoint> points{{start, measure(start).value()}};
  const bool upwards = points.front().ratio > kHiddenRatio;
  for (std::int64_t tokens = upwards ? 2 * start : start / 2; least <= tokens && tokens <= most;
       tokens = upwards ? 2 * tokens : tokens / 2) {
    const std::optional<double> ratio = measure(tokens);
    if (!ratio) break;
    points.push_back({tokens, *ratio});
    if ((*ratio <= kHiddenRatio) == upwards) break;
  }
  return points;
}

}  // namespace strata::bench
