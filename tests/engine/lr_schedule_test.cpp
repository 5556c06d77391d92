#include "engine/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/error.h"

namespace strata::engine {
namespace {

constexpr LrKind kKinds[] = {LrKind::Linear, LrKind::Cosine, LrKind::Constant, LrKind::ConstantWithWarmup};

std::vector<double> rates_of_run(const LrSchedule& schedule) {
  std::vector<double> rates;
  for (std::int64_t update = 1; update <= schedule.total_steps; ++update) rates.push_back(schedule.for_update(update));
  return rates;
}

void expect_rates(const LrSchedule& schedule, const std::vector<double>& expected) {
  const std::vector<double> rates = rates_of_run(schedule);
  ASSERT_EQ(rates.size(), expected.size());
  // Both sides are a handful of double operations on values near 10: a few units in the last place.
  for (std::size_t i = 0; i < rates.size(); ++i) EXPECT_NEAR(rates[i], expected[i], 1e-14) << "update " << i + 1;
}

// The four lists are those of tests/optimization/test_optimization.py of transformers (10 steps, base 10, warm-up 2),
// which asserts them to 1e-2; here with the digits that the formulas give.
TEST(LrSchedule, LinearIsTheOneOfTransformers) {
  expect_rates({.kind = LrKind::Linear, .base = 10, .total_steps = 10, .warmup_steps = 2},
               {0.0, 5.0, 10.0, 8.75, 7.5, 6.25, 5.0, 3.75, 2.5, 1.25});
}

TEST(LrSchedule, CosineIsTheOneOfTransformers) {
  expect_rates({.kind = LrKind::Cosine, .base = 10, .total_steps = 10, .warmup_steps = 2},
               {0.0, 5.0, 10.0, 9.619397662556434, 8.535533905932738, 6.913417161825449, 5.0, 3.0865828381745515,
                1.4644660940672627, 0.38060233744356631});
}

TEST(LrSchedule, ConstantIsTheOneOfTransformers) {
  expect_rates({.kind = LrKind::Constant, .base = 10, .total_steps = 4, .warmup_steps = 2}, {10, 10, 10, 10});
}

TEST(LrSchedule, ConstantWithWarmupIsTheOneOfTransformers) {
  expect_rates({.kind = LrKind::ConstantWithWarmup, .base = 10, .total_steps = 10, .warmup_steps = 4},
               {0.0, 2.5, 5.0, 7.5, 10, 10, 10, 10, 10, 10});
}

TEST(LrSchedule, FirstUpdateUsesTheRateOfZeroFinishedUpdates) {
  const LrSchedule schedule{.kind = LrKind::Linear, .base = 1, .total_steps = 8, .warmup_steps = 0};

  EXPECT_EQ(schedule.for_update(1), schedule.at(0));
  EXPECT_EQ(schedule.for_update(1), 1.0);
}

TEST(LrSchedule, EveryCombinationIsFiniteAndWithinZeroAndBase) {
  for (const LrKind kind : kKinds) {
    for (std::int64_t total = 0; total <= 6; ++total) {
      for (std::int64_t warmup = 0; warmup <= 8; ++warmup) {
        const LrSchedule schedule{.kind = kind, .base = 3e-4, .total_steps = total, .warmup_steps = warmup};
        for (std::int64_t done = 0; done <= 20; ++done) {
          const double rate = schedule.at(done);
          ASSERT_TRUE(std::isfinite(rate) && rate >= 0 && rate <= 3e-4)
              << "kind " << static_cast<int>(kind) << " total " << total << " warm-up " << warmup << " done " << done
              << ": " << rate;
        }
      }
    }
  }
}

TEST(LrSchedule, WarmupLongerThanTheRunClimbsAndNeverReachesBase) {
  for (const LrKind kind : {LrKind::Linear, LrKind::Cosine, LrKind::ConstantWithWarmup}) {
    expect_rates({.kind = kind, .base = 10, .total_steps = 4, .warmup_steps = 8}, {0, 1.25, 2.5, 3.75});
  }
}

TEST(LrSchedule, WarmupAsLongAsTheRunStopsOneStepBelowBase) {
  for (const LrKind kind : {LrKind::Linear, LrKind::Cosine, LrKind::ConstantWithWarmup}) {
    expect_rates({.kind = kind, .base = 10, .total_steps = 4, .warmup_steps = 4}, {0, 2.5, 5, 7.5});
  }
}

TEST(LrSchedule, OneStepWithoutWarmupUsesBase) {
  for (const LrKind kind : kKinds) {
    expect_rates({.kind = kind, .base = 10, .total_steps = 1, .warmup_steps = 0}, {10});
  }
}

TEST(LrSchedule, CosineStaysAtZeroPastTheEnd) {
  const LrSchedule schedule{.kind = LrKind::Cosine, .base = 10, .total_steps = 4, .warmup_steps = 0};

  EXPECT_EQ(schedule.at(4), 0);
  EXPECT_EQ(schedule.at(8), 0);
}

TEST(LrSchedule, NegativeStepIsRefused) {
  EXPECT_THROW(LrSchedule{}.for_update(0), ContractViolation);
}

TEST(WarmupSteps, GivenStepsWinOverTheRatio) {
  EXPECT_EQ(resolve_warmup_steps(7, 0.5, 100), 7);
}

TEST(WarmupSteps, RatioIsRoundedUp) {
  EXPECT_EQ(resolve_warmup_steps(0, 0.03, 101), 4);
  EXPECT_EQ(resolve_warmup_steps(0, 0.0, 101), 0);
  EXPECT_EQ(resolve_warmup_steps(0, 1.0, 1), 1);
}

}  // namespace
}  // namespace strata::engine
