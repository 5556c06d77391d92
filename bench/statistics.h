// Median and spread of a few measurements: what every bench prints.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace strata::bench {

// 0 for no values.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// Median absolute deviation.
inline double mad(const std::vector<double>& values) {
  const double centre = median(values);
  std::vector<double> distances;
  for (const double value : values) distances.push_back(std::abs(value - centre));
  return median(distances);
}

}  // namespace strata::bench
