// Median and spread of a few measurements.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

namespace strata {

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

// Holds the median of what was sampled with at least 95 % probability, whatever the distribution: two order statistics
// (the binomial, or sign test, interval). With fewer than six values even the outermost ones promise less; they are
// returned all the same. {0, 0} for no values.
inline std::array<double, 2> median_interval(std::vector<double> values) {
  if (values.empty()) return {0, 0};
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  // The k-th smallest lies above the median with probability P(fewer than k of n fair coins show heads).
  std::size_t k = 0;
  long double exactly_k = std::pow(0.5L, static_cast<long double>(n));  // its range is enough for 16,000 values
  for (long double below = exactly_k; below <= 0.025L && k < n / 2; below += exactly_k) {
    ++k;
    exactly_k *= static_cast<long double>(n - k + 1) / static_cast<long double>(k);
  }
  const std::size_t skipped = k > 0 ? k - 1 : 0;
  return {values[skipped], values[n - 1 - skipped]};
}

}  // namespace strata
