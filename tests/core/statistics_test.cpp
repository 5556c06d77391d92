#include "core/statistics.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "support/test_seed.h"

namespace strata {
namespace {

std::vector<double> one_to(std::size_t n) {
  std::vector<double> values;
  for (std::size_t i = 1; i <= n; ++i) values.push_back(static_cast<double>(i));
  return values;
}

using Interval = std::array<double, 2>;

TEST(Median, IsTheMiddleOrBetweenTheTwoInTheMiddle) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(median({}), 0);
}

TEST(MedianInterval, IsThatOfTheSignTest) {
  // Largest k with P(Binomial(n, 1/2) < k) <= 2.5 %: 1, 2, 6 and 40.
  EXPECT_EQ(median_interval(one_to(6)), (Interval{1, 6}));
  EXPECT_EQ(median_interval(one_to(10)), (Interval{2, 9}));
  EXPECT_EQ(median_interval(one_to(20)), (Interval{6, 15}));
  EXPECT_EQ(median_interval(one_to(100)), (Interval{40, 61}));
}

TEST(MedianInterval, OfFewValuesIsTheirRange) {
  EXPECT_EQ(median_interval({}), (Interval{0, 0}));
  EXPECT_EQ(median_interval({7}), (Interval{7, 7}));
  EXPECT_EQ(median_interval({9, 7, 8}), (Interval{7, 9}));
}

TEST(MedianInterval, OfManyValuesIsNarrow) {
  const Interval interval = median_interval(one_to(10001));
  EXPECT_GT(interval[0], 4890);
  EXPECT_LT(interval[0], 4910);
}

TEST(MedianInterval, HoldsTheTrueMedianInAtLeast95OfHundredSamples) {
  const std::uint64_t seed = test::test_seed(20);
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> draw;  // skewed; its median is ln 2
  int held = 0;
  constexpr int kSamples = 4000;
  for (int i = 0; i < kSamples; ++i) {
    std::vector<double> values(20);
    for (double& value : values) value = draw(random);
    const Interval interval = median_interval(values);
    held += interval[0] <= std::log(2.0) && std::log(2.0) <= interval[1] ? 1 : 0;
  }
  // 95.9 % are expected; four standard deviations of the count below that.
  EXPECT_GE(held, 3834 - 50);
}

}  // namespace
}  // namespace strata
