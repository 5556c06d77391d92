#include "models/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace strata::models {
namespace {

double frequency(const hf::RopeConfig& config, std::int64_t head_dim, std::int64_t index) {
  return rope_frequencies(config, head_dim)[index].item().toDouble();
}

TEST(Rope, DefaultFrequenciesArePowersOfTheta) {
  const hf::RopeConfig config{.theta = 500000.0};
  for (std::int64_t i = 0; i < 7; ++i) {
    const double expected = std::pow(500000.0, -2.0 * static_cast<double>(i) / 14.0);
    EXPECT_NEAR(frequency(config, 14, i), expected, 1e-6 * expected);
  }
}

TEST(Rope, LinearScalingDividesEveryFrequency) {
  const hf::RopeConfig plain;
  const hf::RopeConfig scaled{.type = hf::RopeType::Linear, .factor = 4.0};
  for (std::int64_t i = 0; i < 8; ++i) EXPECT_EQ(frequency(scaled, 16, i) * 4.0, frequency(plain, 16, i));
}

TEST(Rope, Llama3ScalingKeepsShortDividesLongAndInterpolatesBetween) {
  const hf::RopeConfig plain;
  const hf::RopeConfig scaled{.type = hf::RopeType::Llama3,
                              .factor = 8.0,
                              .low_freq_factor = 1.0,
                              .high_freq_factor = 4.0,
                              .original_max_position_embeddings = 128};
  int kept = 0, divided = 0, between = 0;
  for (std::int64_t i = 0; i < 32; ++i) {
    const double before = frequency(plain, 64, i);
    const double after = frequency(scaled, 64, i);
    const double wavelength = 2 * std::numbers::pi / before;
    if (wavelength < 32) {
      EXPECT_EQ(after, before);
      ++kept;
    } else if (wavelength > 128) {
      EXPECT_EQ(after * 8, before);
      ++divided;
    } else {
      const double smooth = (128 / wavelength - 1) / 3;
      EXPECT_NEAR(after, (1 - smooth) * before / 8 + smooth * before, 1e-6 * before);
      ++between;
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(divided, 0);
  EXPECT_GT(between, 0);
}

TEST(Rope, RotatesElementIAgainstElementIPlusHalfByPositionTimesFrequency) {
  const hf::RopeConfig config;
  const RopeTable table = rope_table(rope_frequencies(config, 4), 3);
  // x [B=1, T=3, heads=1, 4]: first half ones, second half zeros turns into (cos, sin).
  at::Tensor x = at::ones({1, 3, 1, 4});
  x.narrow(-1, 2, 2).zero_();
  const at::Tensor y = apply_rope(x, table);
  for (std::int64_t t = 0; t < 3; ++t) {
    for (std::int64_t i = 0; i < 2; ++i) {
      const double angle = static_cast<double>(t) * std::pow(10000.0, -static_cast<double>(i) / 2.0);
      EXPECT_NEAR(y[0][t][0][i].item().toDouble(), std::cos(angle), 1e-6);
      EXPECT_NEAR(y[0][t][0][i + 2].item().toDouble(), std::sin(angle), 1e-6);
    }
  }
}

TEST(Rope, SixteenBitInputIsRotatedInFp32AndRoundedOnce) {
  const RopeTable table = rope_table(rope_frequencies({}, 8), 50);
  const at::Tensor x = (at::ones({1, 50, 2, 8}) * 1.2345).to(at::kBFloat16);
  const at::Tensor expected = apply_rope(x.to(at::kFloat), table).to(at::kBFloat16);
  EXPECT_TRUE(apply_rope(x, table).equal(expected));
}

}  // namespace
}  // namespace strata::models
