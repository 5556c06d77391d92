#include "core/numeric.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace strata {
namespace {

constexpr std::uint32_t kPatterns = 0x10000;

// A 16-bit format by its numbers. Everything below is computed in double from them, not from bit tricks.
struct Format {
  int mantissa_bits;
  int min_exponent;  // of the smallest normal number
  int max_exponent;  // of the largest finite number
};
constexpr Format kBf16{7, -126, 127};
constexpr Format kHalf{10, -14, 15};

std::uint32_t exponent_ones(const Format& format) {
  return static_cast<std::uint32_t>(format.max_exponent - format.min_exponent + 2);
}

// The value of the non-negative pattern `bits` by the definition of IEEE 754; infinity and NaN for the last exponent.
double decode(const Format& format, std::uint32_t bits) {
  const std::uint32_t mantissa = bits & ((1U << format.mantissa_bits) - 1);
  const std::uint32_t exponent = bits >> format.mantissa_bits;
  if (exponent == exponent_ones(format)) {
    return mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return std::ldexp(mantissa, format.min_exponent - format.mantissa_bits);
  const double significand = 1 + std::ldexp(mantissa, -format.mantissa_bits);
  return std::ldexp(significand, static_cast<int>(exponent) - 1 + format.min_exponent);
}

// Nearest multiple of the unit in the last place, ties away from zero. Exact: a double holds 53 bits, a float 24.
std::uint16_t encode(const Format& format, float value) {
  const std::uint32_t sign = std::signbit(value) ? 0x8000U : 0U;
  const double magnitude = std::fabs(static_cast<double>(value));
  const std::uint32_t infinity = exponent_ones(format) << format.mantissa_bits;
  if (std::isinf(magnitude)) return static_cast<std::uint16_t>(sign | infinity);
  if (magnitude == 0) return static_cast<std::uint16_t>(sign);
  const int exponent = std::max(std::ilogb(magnitude), format.min_exponent);
  const double ulp = std::ldexp(1.0, exponent - format.mantissa_bits);
  const double units = std::floor(magnitude / ulp + 0.5);
  if (units * ulp >= std::ldexp(1.0, format.max_exponent + 1)) return static_cast<std::uint16_t>(sign | infinity);
  // Patterns of non-negative numbers count the representable values upwards: 2^mantissa_bits of them per exponent.
  const double below = std::ldexp(exponent - format.min_exponent, format.mantissa_bits);
  return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(below + units));
}

void expect_bf16(float value) {
  ASSERT_EQ(float_to_bf16(value), encode(kBf16, value)) << std::hex << "float bits " << float_bits(value);
}

void expect_half(float value) {
  ASSERT_EQ(float_to_half(value), encode(kHalf, value)) << std::hex << "float bits " << float_bits(value);
}

TEST(Numeric, FloatBitsRoundTrip) {
  for (const std::uint32_t bits : {0U, 0x80000000U, 0x3f800000U, 1U, 0x7f800000U, 0xffc00001U}) {
    EXPECT_EQ(float_bits(float_from_bits(bits)), bits);
  }
}

TEST(Bf16, EveryPatternDecodesToItsDefinition) {
  for (std::uint32_t bits = 0; bits < kPatterns; ++bits) {
    const double expected = decode(kBf16, bits & 0x7fffU);
    const float value = bf16_to_float(static_cast<std::uint16_t>(bits));
    ASSERT_EQ(std::signbit(value), bits >= 0x8000U) << bits;
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(std::fabs(static_cast<double>(value)), expected) << bits;
    }
  }
}

TEST(Bf16, EveryPatternSurvivesTheRoundTripAndNanBecomesQuiet) {
  for (std::uint32_t bits = 0; bits < kPatterns; ++bits) {
    const bool nan = (bits & 0x7fffU) > 0x7f80U;
    const std::uint16_t back = float_to_bf16(bf16_to_float(static_cast<std::uint16_t>(bits)));
    ASSERT_EQ(back, nan ? (bits | 0x40U) : bits) << bits;
  }
}

TEST(Bf16, RoundsAsDefinedAroundEveryPattern) {
  for (std::uint32_t high = 0; high < kPatterns; ++high) {
    if ((high & 0x7f80U) == 0x7f80U) continue;  // infinity and NaN have tests of their own
    // The tie is 0x8000; its neighbours, the ends and one value on each side.
    for (const std::uint32_t low : {0U, 1U, 0x1234U, 0x7fffU, 0x8000U, 0x8001U, 0xc321U, 0xffffU}) {
      expect_bf16(float_from_bits(high << 16 | low));
    }
  }
}

TEST(Bf16, RandomFloatsRoundAsDefined) {
  constexpr unsigned kSeed = 1;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  for (int i = 0; i < 1'000'000; ++i) {
    const float value = float_from_bits(static_cast<std::uint32_t>(random()));
    if (!std::isnan(value)) expect_bf16(value);
  }
}

TEST(Bf16, TiesGoAwayFromZero) {
  EXPECT_EQ(float_to_bf16(float_from_bits(0x3f808000U)), 0x3f81U);  // even would be 0x3f80
  EXPECT_EQ(float_to_bf16(float_from_bits(0xbf808000U)), 0xbf81U);
  EXPECT_EQ(float_to_bf16(float_from_bits(0x3f818000U)), 0x3f82U);
}

TEST(Bf16, OverflowGoesToInfinity) {
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80U);
  EXPECT_EQ(float_to_bf16(-std::numeric_limits<float>::max()), 0xff80U);
  EXPECT_EQ(float_to_bf16(float_from_bits(0x7f7f7fffU)), 0x7f7fU);
  EXPECT_EQ(float_to_bf16(float_from_bits(0x7f7f8000U)), 0x7f80U);
}

TEST(Bf16, InfinityStays) {
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::infinity()), 0x7f80U);
  EXPECT_EQ(float_to_bf16(-std::numeric_limits<float>::infinity()), 0xff80U);
}

TEST(Bf16, NanStaysQuietNanWithSignAndTopPayload) {
  for (const std::uint32_t sign : {0U, 0x80000000U}) {
    for (std::uint32_t payload = 1; payload < 0x800000U; payload = payload * 3 + 1) {
      const std::uint32_t bits = sign | 0x7f800000U | payload;
      const std::uint16_t rounded = float_to_bf16(float_from_bits(bits));
      ASSERT_EQ(rounded, static_cast<std::uint16_t>(bits >> 16 | 0x40U)) << std::hex << bits;
      ASSERT_TRUE(std::isnan(bf16_to_float(rounded))) << std::hex << bits;
    }
  }
}

TEST(Half, EveryPatternDecodesToItsDefinition) {
  for (std::uint32_t bits = 0; bits < kPatterns; ++bits) {
    const double expected = decode(kHalf, bits & 0x7fffU);
    const float value = half_to_float(static_cast<std::uint16_t>(bits));
    ASSERT_EQ(std::signbit(value), bits >= 0x8000U) << bits;
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(std::fabs(static_cast<double>(value)), expected) << bits;
    }
  }
}

TEST(Half, EveryPatternSurvivesTheRoundTripAndNanBecomesQuiet) {
  for (std::uint32_t bits = 0; bits < kPatterns; ++bits) {
    const bool nan = (bits & 0x7fffU) > 0x7c00U;
    const std::uint16_t back = float_to_half(half_to_float(static_cast<std::uint16_t>(bits)));
    ASSERT_EQ(back, nan ? (bits | 0x200U) : bits) << bits;
  }
}

TEST(Half, RoundsAsDefinedAroundEveryPatternAndEveryTie) {
  for (std::uint32_t bits = 0; bits < 0x7c00U; ++bits) {
    const double here = decode(kHalf, bits);
    const double next = bits + 1 == 0x7c00U ? 65536.0 : decode(kHalf, bits + 1);
    const auto tie = static_cast<float>((here + next) / 2);  // exact: one bit more than a half has
    for (const float point : {static_cast<float>(here), tie}) {
      for (const float value : {std::nextafterf(point, -1.0F), point, std::nextafterf(point, 1e9F)}) {
        expect_half(value);
        expect_half(-value);
      }
    }
  }
}

TEST(Half, RandomFloatsRoundAsDefined) {
  constexpr unsigned kSeed = 2;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  for (int i = 0; i < 1'000'000; ++i) {
    const float value = float_from_bits(static_cast<std::uint32_t>(random()));
    if (!std::isnan(value)) expect_half(value);
    // Most bit patterns over- or underflow a half; these do not.
    expect_half(std::ldexp(static_cast<float>(random() >> 8), static_cast<int>(random() % 48) - 50));
  }
}

TEST(Half, TiesGoAwayFromZero) {
  EXPECT_EQ(float_to_half(float_from_bits(0x3f801000U)), 0x3c01U);  // even would be 0x3c00
  EXPECT_EQ(float_to_half(float_from_bits(0xbf801000U)), 0xbc01U);
  EXPECT_EQ(float_to_half(std::ldexp(1.0F, -25)), 0x0001U);  // half of the smallest subnormal
  EXPECT_EQ(float_to_half(std::nextafterf(std::ldexp(1.0F, -25), 0.0F)), 0x0000U);
}

TEST(Half, OverflowGoesToInfinity) {
  EXPECT_EQ(float_to_half(65504.0F), 0x7bffU);
  EXPECT_EQ(float_to_half(std::nextafterf(65520.0F, 0.0F)), 0x7bffU);
  EXPECT_EQ(float_to_half(65520.0F), 0x7c00U);
  EXPECT_EQ(float_to_half(-1e30F), 0xfc00U);
  EXPECT_EQ(float_to_half(std::numeric_limits<float>::infinity()), 0x7c00U);
}

TEST(Half, FloatDenormalsRoundToSignedZero) {
  EXPECT_EQ(float_to_half(std::numeric_limits<float>::denorm_min()), 0x0000U);
  EXPECT_EQ(float_to_half(-std::numeric_limits<float>::denorm_min()), 0x8000U);
  EXPECT_EQ(float_to_half(-0.0F), 0x8000U);
}

TEST(Half, NanStaysNanWithItsSign) {
  for (const std::uint32_t sign : {0U, 0x80000000U}) {
    for (std::uint32_t payload = 1; payload < 0x800000U; payload = payload * 3 + 1) {
      const std::uint16_t rounded = float_to_half(float_from_bits(sign | 0x7f800000U | payload));
      ASSERT_TRUE(std::isnan(half_to_float(rounded))) << std::hex << payload;
      ASSERT_EQ(rounded >> 15, static_cast<int>(sign >> 31)) << std::hex << payload;
    }
  }
}

}  // namespace
}  // namespace strata
