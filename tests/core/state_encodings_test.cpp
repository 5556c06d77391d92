#include "core/state_encodings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "support/test_seed.h"

namespace strata {
namespace {

// --- remainder ---

TEST(Remainder, EveryMasterComesBackBitForBit) {
  const std::vector<std::uint32_t> lows = {0, 1, 0x1234, 0x7fff, 0x8000, 0x8001, 0xabcd, 0xffff};
  for (std::uint32_t high = 0; high <= 0xffff; ++high) {
    for (const std::uint32_t low : lows) {
      const float master = float_from_bits(high << 16 | low);
      const float back = master_of(float_to_bf16(master), remainder_of(master));
      if (std::isnan(master)) {
        ASSERT_TRUE(std::isnan(back)) << std::hex << high << low;
        ASSERT_EQ(std::signbit(back), std::signbit(master));
      } else {
        ASSERT_EQ(float_bits(back), float_bits(master)) << std::hex << high << " " << low;
      }
    }
  }
}

TEST(Remainder, RandomMastersComeBackBitForBit) {
  const std::uint64_t seed = test::test_seed(31);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(static_cast<unsigned>(seed));
  for (int i = 0; i < 1 << 24; ++i) {
    const float master = float_from_bits(static_cast<std::uint32_t>(random()));
    if (std::isnan(master)) continue;
    ASSERT_EQ(float_bits(master_of(float_to_bf16(master), remainder_of(master))), float_bits(master));
  }
}

// --- stochastic rounding ---

// Over all 2^16 random numbers, exactly as many round away from zero as the distance says.
TEST(StochasticRounding, IsUnbiasedExactly) {
  const std::uint64_t seed = test::test_seed(32);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int k = 0; k < 100; ++k) {
    const auto bits = static_cast<std::uint32_t>(random()) & 0xbf7fffffu;  // finite, away from overflow
    std::uint32_t away = 0;
    for (std::uint32_t r = 0; r <= 0xffff; ++r) {
      const std::uint16_t code = float_to_bf16_stochastic(float_from_bits(bits), r);
      ASSERT_TRUE(code == bits >> 16 || code == (bits >> 16) + 1);
      away += code == (bits >> 16) + 1 ? 1u : 0u;
    }
    EXPECT_EQ(away, bits & 0xffffu) << std::hex << bits;
  }
}

TEST(StochasticRounding, WhatBf16CanHoldStaysAndNansStayNans) {
  for (std::uint32_t code = 0; code <= 0xffff; ++code) {
    const float value = bf16_to_float(static_cast<std::uint16_t>(code));
    for (const std::uint32_t r : {0u, 1u, 0x8000u, 0xffffu}) {
      const std::uint16_t rounded = float_to_bf16_stochastic(value, r);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(bf16_to_float(rounded)));
      } else {
        ASSERT_EQ(rounded, code);
      }
    }
  }
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16_stochastic(float_from_bits(0x7f800001u), 0xffff))));
}

// Bits of words, of pairs of neighbours, and of the same element in the next step, over seeds: each is set half the
// time. The bound is five standard deviations of 2^20 coin tosses.
TEST(RandomWords, BitsAreFairAndIndependent) {
  const std::uint64_t seed = test::test_seed(33);
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr std::uint32_t kWords = 1 << 20;
  const double bound = 5 * std::sqrt(kWords / 4.0);
  for (const std::uint64_t step : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{1000}}) {
    const RandomKey key = random_key(seed, step, 0), next_step = random_key(seed, step + 1, 0);
    const RandomKey next_seed = random_key(seed + 1, step, 0), next_index = random_key(seed, step, 1);
    std::vector<double> plain(32), neighbour(32), later(32), other_seed(32), far(32), halves(16);
    for (std::uint32_t i = 0; i < kWords; ++i) {
      const std::uint32_t word = random_word(key, i);
      for (std::size_t bit = 0; bit < 32; ++bit) {
        const auto at = [bit](std::uint32_t value) { return static_cast<double>(value >> bit & 1u); };
        plain[bit] += at(word);
        neighbour[bit] += at(word ^ random_word(key, i + 1));
        later[bit] += at(word ^ random_word(next_step, i));
        other_seed[bit] += at(word ^ random_word(next_seed, i));
        far[bit] += at(word ^ random_word(next_index, i));
        if (bit < 16) halves[bit] += at(word ^ (word >> 16));
      }
    }
    for (const auto& counts : {plain, neighbour, later, other_seed, far, halves}) {
      for (const double count : counts) EXPECT_NEAR(count, kWords / 2.0, bound);
    }
  }
}

TEST(RandomWords, ABlockOfTheIndexGivesEveryUpperByteAboutEquallyOften) {
  const RandomKey key = random_key(test::test_seed(34), 7, 0);
  std::vector<double> seen(256);
  for (std::uint32_t i = 0; i < 1 << 20; ++i) ++seen[random_word(key, i) >> 24];
  double chi_squared = 0;
  for (const double count : seen) chi_squared += (count - 4096) * (count - 4096) / 4096;
  // 255 degrees of freedom: mean 255, standard deviation 22.6; six of them.
  EXPECT_LT(chi_squared, 255 + 6 * 22.6);
  EXPECT_GT(chi_squared, 255 - 6 * 22.6);
}

// --- 8-bit codes ---

// The published table, as bitsandbytes' create_dynamic_map builds it, in double.
std::vector<double> published_table(bool is_signed) {
  std::vector<double> table = {0.0, 1.0};
  for (int decade = 0; decade < 7; ++decade) {
    const int intervals = 1 << (is_signed ? decade : decade + 1);
    for (int k = 0; k < intervals; ++k) {
      const double low = 0.1 + 0.9 * k / intervals, high = 0.1 + 0.9 * (k + 1) / intervals;
      const double entry = std::pow(10.0, decade - 6) * (low + high) / 2;
      table.push_back(entry);
      if (is_signed) table.push_back(-entry);
    }
  }
  std::sort(table.begin(), table.end());
  return table;
}

// The entry of a rank.
float decode(bool is_signed, int rank) {
  return is_signed ? decode_signed(static_cast<std::uint8_t>(-rank), 1.0f)
                   : decode_not_negative(static_cast<std::uint8_t>(rank), 1.0f);
}

TEST(DynamicCode, DecodesToThePublishedTable) {
  for (const bool is_signed : {true, false}) {
    const std::vector<double> table = published_table(is_signed);
    ASSERT_EQ(table.size(), 256u);
    const int zero = is_signed ? 127 : 0;
    for (int i = 0; i < 256; ++i) {
      const double entry = table[static_cast<std::size_t>(i)];
      EXPECT_NEAR(decode(is_signed, i - zero), entry, 2e-6 * std::abs(entry)) << i;
    }
    EXPECT_EQ(float_bits(decode(is_signed, 0)), 0u);
  }
}

// Values across all decades, of both signs: no entry is nearer than the chosen one, up to rounding.
TEST(DynamicCode, EncodesToTheNearestEntry) {
  const std::uint64_t seed = test::test_seed(35);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> exponent(-8, 0), uniform(-1, 1);
  for (const bool is_signed : {true, false}) {
    const std::vector<double> table = published_table(is_signed);
    for (int k = 0; k < 2000000; ++k) {
      double wanted = k % 2 == 0 ? uniform(random) : std::pow(10.0, exponent(random)) * (uniform(random) < 0 ? -1 : 1);
      if (!is_signed) wanted = std::abs(wanted);
      const auto value = static_cast<float>(wanted);
      const std::uint8_t code = is_signed ? encode_signed(value, 1.0f) : encode_not_negative(value, 1.0f);
      const double chosen =
          static_cast<double>(is_signed ? decode_signed(code, 1.0f) : decode_not_negative(code, 1.0f));
      auto above = std::lower_bound(table.begin(), table.end(), static_cast<double>(value));
      if (above == table.end()) --above;
      double nearest = std::abs(*above - static_cast<double>(value));
      if (above != table.begin()) nearest = std::min(nearest, std::abs(*(above - 1) - static_cast<double>(value)));
      if (!is_signed && code == 1 && value != 0) continue;  // what would be zero is kept away from it
      ASSERT_LE(std::abs(chosen - static_cast<double>(value)), nearest + 4e-6 * std::abs(static_cast<double>(value)))
          << value << " became " << chosen;
    }
  }
}

TEST(DynamicCode, EveryCodeComesBack) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    EXPECT_EQ(encode_signed(decode_signed(byte, 1.0f), 1.0f), byte);
    EXPECT_EQ(encode_not_negative(decode_not_negative(byte, 1.0f), 1.0f), byte);
  }
}

// Half an interval of the top decade, of the largest magnitude: 0.45 / 64 and 0.45 / 128; below, relative to the value,
// half an interval of its decade.
TEST(DynamicCode, TheErrorOfABlockIsBounded) {
  const std::uint64_t seed = test::test_seed(36);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (int k = 0; k < 1000; ++k) {
    std::vector<float> values(kScaleBlock);
    float largest = 0;
    for (float& value : values) {
      value = 3e-5f * normal(random);
      largest = std::max(largest, std::abs(value));
    }
    const BlockScale scale = block_scale(float_bits(largest));
    EXPECT_EQ(scale.stored, largest);
    for (const float value : values) {
      const float back = decode_signed(encode_signed(value, scale.inverse), scale.stored);
      const float square = std::abs(value);
      const float back_square = decode_not_negative(encode_not_negative(square, scale.inverse), scale.stored);
      ASSERT_LE(std::abs(back - value), largest * (0.45f / 64 + 1e-6f));
      ASSERT_LE(std::abs(back_square - square), largest * (0.45f / 128 + 1e-6f));
    }
    EXPECT_EQ(decode_signed(encode_signed(largest, scale.inverse), scale.stored), largest);
  }
}

TEST(DynamicCode, ASecondMomentThatIsNotZeroNeverBecomesZero) {
  for (const float value : {1e-7f, 1e-10f, 1e-30f, 1e-45f}) EXPECT_EQ(encode_not_negative(value, 1.0f), 1) << value;
  EXPECT_EQ(encode_not_negative(0.0f, 1.0f), 0);
  EXPECT_EQ(encode_not_negative(-0.0f, 1.0f), 0);
}

TEST(DynamicCode, NegativeValuesHaveNoEntryMinusOne) {
  EXPECT_EQ(encode_signed(1.0f, 1.0f), 128);  // minus the rank, modulo 256
  EXPECT_EQ(encode_signed(-1.0f, 1.0f), 127);
  EXPECT_EQ(decode(true, 128), 1.0f);
  EXPECT_EQ(decode(false, 255), 1.0f);
  EXPECT_NEAR(decode(true, -127), -(1 - 0.45 / 64), 1e-6);
}

TEST(DynamicCode, ScalesOfZeroTinyAndBrokenBlocks) {
  const auto scale_of = [](float largest) { return block_scale(float_bits(largest)); };
  for (const float tiny : {0.0f, 1e-45f, 1e-38f}) {
    EXPECT_EQ(scale_of(tiny).stored, 0.0f);
    EXPECT_EQ(encode_signed(tiny, scale_of(tiny).inverse), 0);
  }
  for (const float broken : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_TRUE(std::isnan(scale_of(broken).stored));
    EXPECT_EQ(encode_signed(1.0f, scale_of(broken).inverse), 0);
    EXPECT_TRUE(std::isnan(decode_signed(0, scale_of(broken).stored)));
    EXPECT_TRUE(std::isnan(decode_not_negative(0, scale_of(broken).stored)));
  }
  for (const float extreme : {std::numeric_limits<float>::min(), std::numeric_limits<float>::max()}) {
    EXPECT_EQ(decode_signed(encode_signed(extreme, scale_of(extreme).inverse), extreme), extreme);
  }
}

}  // namespace
}  // namespace strata
