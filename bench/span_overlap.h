// How much of some spans of a trace lies within others.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "core/trace.h"

namespace strata::bench {

// Disjoint and sorted.
using Intervals = std::vector<std::pair<Trace::Clock::time_point, Trace::Clock::time_point>>;

// The union of the spans of one row.
inline Intervals intervals_of(const std::vector<Trace::Span>& spans, std::uint32_t row) {
  Intervals sorted;
  for (const Trace::Span& span : spans) {
    if (span.row == row && span.begin < span.end) sorted.emplace_back(span.begin, span.end);
  }
  std::sort(sorted.begin(), sorted.end());
  Intervals merged;
  for (const auto& interval : sorted) {
    if (merged.empty() || interval.first > merged.back().second) {
      merged.push_back(interval);
    } else {
      merged.back().second = std::max(merged.back().second, interval.second);
    }
  }
  return merged;
}

inline double seconds_of(const Intervals& intervals) {
  double sum = 0;
  for (const auto& [begin, end] : intervals) sum += std::chrono::duration<double>(end - begin).count();
  return sum;
}

inline Intervals common_part(const Intervals& a, const Intervals& b) {
  Intervals common;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const auto begin = std::max(a[i].first, b[j].first);
    const auto end = std::min(a[i].second, b[j].second);
    if (begin < end) common.emplace_back(begin, end);
    (a[i].second < b[j].second ? i : j)++;
  }
  return common;
}

}  // namespace strata::bench
