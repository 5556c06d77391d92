#include "nvme/path_rates.h"

#include <gtest/gtest.h>

namespace strata::nvme {
namespace {

constexpr std::uint64_t kWindow = 1000;

class PathRatesTest : public testing::Test {
 protected:
  static PathRates::Clock::time_point at(int milliseconds) {
    return PathRates::Clock::time_point(std::chrono::milliseconds(milliseconds));
  }
  // One window of `path` that takes `milliseconds`.
  void measure(PathRates& rates, std::size_t path, int milliseconds) {
    rates.begin(path, at(now_));
    now_ += milliseconds;
    rates.end(path, kWindow, at(now_));
  }
  int now_ = 0;
};

TEST_F(PathRatesTest, GivesEqualWeightsWhenNothingIsKnown) {
  EXPECT_EQ(PathRates({0, 0}, kWindow).weights(), (std::vector<double>{0.5, 0.5}));
}

TEST_F(PathRatesTest, UsesKnownRatesBeforeItMeasured) {
  EXPECT_EQ(PathRates({3, 1}, kWindow).weights(), (std::vector<double>{0.75, 0.25}));
}

TEST_F(PathRatesTest, IgnoresKnownRatesWhenOneIsMissing) {
  EXPECT_EQ(PathRates({3, 0}, kWindow).weights(), (std::vector<double>{0.5, 0.5}));
}

TEST_F(PathRatesTest, TakesMeasuredRatesOnceEveryPathHasOne) {
  PathRates rates({1, 1}, kWindow);
  measure(rates, 0, 10);
  EXPECT_EQ(rates.weights(), (std::vector<double>{0.5, 0.5}));
  measure(rates, 1, 30);
  EXPECT_EQ(rates.weights(), (std::vector<double>{0.75, 0.25}));
}

TEST_F(PathRatesTest, CountsOnlyTheTimeInWhichAPathIsBusy) {
  PathRates rates({0, 0}, kWindow);
  rates.begin(0, at(0));
  rates.begin(0, at(5));
  rates.end(0, kWindow / 2, at(8));
  EXPECT_TRUE(rates.end(0, kWindow / 2, at(10)));  // 10 ms, though two overlapped
  rates.begin(1, at(100));
  EXPECT_FALSE(rates.end(1, kWindow / 2, at(105)));
  rates.begin(1, at(900));  // idle since 105
  EXPECT_TRUE(rates.end(1, kWindow / 2, at(905)));
  EXPECT_DOUBLE_EQ(rates.weights()[0], 0.5);
}

TEST_F(PathRatesTest, CountsTimeButNoBytesOfAFailure) {
  PathRates rates({0, 0}, kWindow);
  rates.begin(0, at(0));
  rates.end(0, 0, at(10));
  rates.begin(0, at(10));
  rates.end(0, kWindow, at(20));
  now_ = 20;
  measure(rates, 1, 20);
  EXPECT_DOUBLE_EQ(rates.weights()[0], 0.5);
}

TEST_F(PathRatesTest, FollowsADriveThatBecomesSlow) {
  PathRates rates({0, 0}, kWindow);
  measure(rates, 0, 10);
  for (int i = 0; i < 12; ++i) measure(rates, 1, 10);
  EXPECT_DOUBLE_EQ(rates.weights()[0], 0.5);
  measure(rates, 0, 90);
  EXPECT_LT(rates.weights()[0], 0.5);
  for (int i = 0; i < 12; ++i) measure(rates, 0, 90);
  EXPECT_NEAR(rates.weights()[0], 0.1, 1e-3);
}

}  // namespace
}  // namespace strata::nvme
