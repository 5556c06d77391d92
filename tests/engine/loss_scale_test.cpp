#include "engine/loss_scale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/error.h"

namespace strata::engine {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr LossScaleConfig kDynamic{.initial = 1024, .minimum = 1, .window = 3};
constexpr LossScaleConfig kConstant{.constant = 128};

TEST(LossScale, ARunWithoutOneScalesNothing) {
  EXPECT_EQ(resumed_loss_scale(std::nullopt, {4096, 5}), LossScaleState{});
  EXPECT_EQ(gradient_seed({}, 1000), 1);
}

TEST(LossScale, BeginsWithTheInitialOneAndContinuesWithTheStoredOne) {
  EXPECT_EQ(resumed_loss_scale(kDynamic, {}), (LossScaleState{1024, 0}));
  EXPECT_EQ(resumed_loss_scale(kDynamic, {4, 2}), (LossScaleState{4, 2}));
  EXPECT_EQ(resumed_loss_scale(LossScaleConfig{.initial = 1024, .minimum = 8, .window = 3}, {4, 2}),
            (LossScaleState{8, 0}));
  EXPECT_EQ(resumed_loss_scale(kConstant, {4, 2}), (LossScaleState{128, 0}));
}

TEST(LossScale, DoublesAfterAWindowOfGoodSteps) {
  LossScaleState state{1024, 0};
  state = after_good_step(kDynamic, after_good_step(kDynamic, state));
  EXPECT_EQ(state, (LossScaleState{1024, 2}));
  EXPECT_EQ(after_good_step(kDynamic, state), (LossScaleState{2048, 0}));
}

TEST(LossScale, HalvesAtAnOverflowAndCountsGoodStepsAnew) {
  EXPECT_EQ(after_overflow(kDynamic, {1024, 2}), (LossScaleState{512, 0}));
}

TEST(LossScale, AConstantOneNeverChanges) {
  const LossScaleState state = resumed_loss_scale(kConstant, {});
  EXPECT_EQ(after_overflow(kConstant, state), state);
  EXPECT_EQ(after_good_step(kConstant, state).scale, 128);
}

TEST(LossScale, DoesNotGrowBeyondWhatFp32CanDivideBy) {
  EXPECT_EQ(after_good_step({.initial = 1, .minimum = 1, .window = 1}, {kLargestLossScale, 0}),
            (LossScaleState{kLargestLossScale, 0}));
}

// NUM-24
TEST(LossScale, ARunThatWouldFallBelowTheMinimumEndsWithAdvice) {
  EXPECT_EQ(after_overflow(kDynamic, {2, 0}).scale, 1);
  try {
    after_overflow(kDynamic, {1, 0});
    FAIL() << "accepted";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("scale of 1,"), HasSubstr("minimum of 1 (min_loss_scale)"),
                                    HasSubstr("bf16: true"), HasSubstr("learning_rate")));
  }
  EXPECT_THROW(after_overflow({.initial = 100, .minimum = 40, .window = 1}, {75, 0}), DataError);
}

TEST(LossScale, SettingsThatContradictEachOtherAreRefused) {
  for (const LossScaleConfig& wrong :
       {LossScaleConfig{.constant = -1}, LossScaleConfig{.constant = 1e30}, LossScaleConfig{.initial = 0},
        LossScaleConfig{.minimum = 0}, LossScaleConfig{.initial = 2, .minimum = 4}, LossScaleConfig{.window = 0}}) {
    EXPECT_THROW(resumed_loss_scale(wrong, {}), ConfigError);
  }
}

TEST(LossScale, TheSeedIsThatOfTheMeanLossByAPowerOfTwo) {
  EXPECT_EQ(gradient_seed({65536, 0}, 1), 65536);
  EXPECT_EQ(gradient_seed({65536, 0}, 4096), 16);
  EXPECT_EQ(gradient_seed({65536, 0}, 4097), 16);
  EXPECT_EQ(gradient_seed({65536, 0}, 8191), 16);
  EXPECT_EQ(gradient_seed({1, 0}, 1024), 1.0 / 1024);
  EXPECT_EQ(gradient_seed({65536, 0}, 0), 65536);
  EXPECT_EQ(gradient_seed({0.1, 0}, 1), static_cast<double>(0.1F)) << "the fp32 number that multiplies";
}

// Whatever happens, a dynamic scale is the initial one times a power of two and stays within its bounds.
TEST(LossScale, StaysAPowerOfTwoWithinItsBounds) {
  const unsigned seed = 20261129;
  std::mt19937 random(seed);
  LossScaleState state = resumed_loss_scale(kDynamic, {});
  for (int step = 0; step < 20000; ++step) {
    const bool may_overflow = state.scale >= 2 * kDynamic.minimum;
    state = may_overflow && random() % 4 == 0 ? after_overflow(kDynamic, state) : after_good_step(kDynamic, state);
    ASSERT_GE(state.scale, kDynamic.minimum) << "seed " << seed << ", step " << step;
    ASSERT_LE(state.scale, kLargestLossScale) << "seed " << seed << ", step " << step;
    ASSERT_LT(state.good_steps, kDynamic.window) << "seed " << seed << ", step " << step;
    ASSERT_EQ(std::ldexp(1.0, std::ilogb(state.scale)), state.scale) << "seed " << seed << ", step " << step;
  }
}

}  // namespace
}  // namespace strata::engine
