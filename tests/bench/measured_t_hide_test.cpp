#include "bench/measured_t_hide.h"

#include <gtest/gtest.h>

namespace strata::bench {
namespace {

using Bound = HideEstimate::Bound;

// Computing takes a second per 100 tokens, offloading adds a constant time.
double ratio_with(double added_seconds, std::int64_t tokens) {
  return 1 + added_seconds / (static_cast<double>(tokens) / 100);
}

TEST(Hide, IsExactWhereOffloadingAddsAConstantTime) {
  // Half a second is a tenth of five seconds, which 500 tokens take.
  const HideEstimate estimate = estimate_t_hide({{1024, ratio_with(0.5, 1024)}, {256, ratio_with(0.5, 256)}});

  EXPECT_EQ(estimate.bound, Bound::Between);
  EXPECT_NEAR(estimate.tokens, 500, 1e-6);
}

TEST(Hide, GivesTheFewestTokensWhereAllAreHidden) {
  const HideEstimate estimate = estimate_t_hide({{512, 1.01}, {256, 1.04}});
  EXPECT_EQ(estimate.bound, Bound::AtMost);
  EXPECT_EQ(estimate.tokens, 256);
}

TEST(Hide, GivesTheMostTokensWhereNoneIsHidden) {
  const HideEstimate estimate = estimate_t_hide({{512, 1.3}, {256, 1.9}});
  EXPECT_EQ(estimate.bound, Bound::MoreThan);
  EXPECT_EQ(estimate.tokens, 512);
}

TEST(Hide, TakesAStepThatIsFasterThanItsComputingAsHidden) {
  const HideEstimate estimate = estimate_t_hide({{256, 1.2}, {512, 0.98}});
  EXPECT_EQ(estimate.bound, Bound::Between);
  EXPECT_GT(estimate.tokens, 256);
  EXPECT_LT(estimate.tokens, 512);
}

TEST(Hide, LooksUpwardsUntilAStepIsHidden) {
  const std::vector<HidePoint> points =
      measure_t_hide(128, 16, 4096, [](std::int64_t tokens) { return ratio_with(0.5, tokens); });

  ASSERT_EQ(points.size(), 3U);
  EXPECT_EQ(points.back().tokens, 512);
  EXPECT_NEAR(estimate_t_hide(points).tokens, 500, 1e-6);
}

TEST(Hide, LooksDownwardsUntilAStepIsNot) {
  const std::vector<HidePoint> points =
      measure_t_hide(2048, 16, 4096, [](std::int64_t tokens) { return ratio_with(0.5, tokens); });

  ASSERT_EQ(points.size(), 4U);
  EXPECT_EQ(points.back().tokens, 256);
  EXPECT_NEAR(estimate_t_hide(points).tokens, 500, 1e-6);
}

TEST(Hide, StopsAtItsBoundsAndWhereTokensDoNotFit) {
  const auto never = [](std::int64_t tokens) { return ratio_with(100, tokens); };
  EXPECT_EQ(measure_t_hide(128, 16, 300, never).size(), 2U);
  const auto always = [](std::int64_t) { return 1.0; };
  EXPECT_EQ(measure_t_hide(128, 33, 300, always).size(), 2U);
  const auto fits_256 = [](std::int64_t tokens) { return tokens <= 256 ? std::optional<double>(3.0) : std::nullopt; };
  const std::vector<HidePoint> points = measure_t_hide(128, 16, 4096, fits_256);
  EXPECT_EQ(points.back().tokens, 256);
  EXPECT_EQ(estimate_t_hide(points).bound, Bound::MoreThan);
}

}  // namespace
}  // namespace strata::bench
