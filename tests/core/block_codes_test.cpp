#include "core/block_codes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "support/plain_math.h"
#include "support/test_seed.h"

namespace strata {
namespace {

constexpr BlockCode kCodes[] = {BlockCode::Int8, BlockCode::Int4};

TEST(BlockCodes, AMessageIsCodesThenScalesWithoutAGapOfMoreThanThreeBytes) {
  struct Row {
    std::size_t numel, int8, int4;
  };
  for (const Row& row : {Row{0, 0, 0}, Row{1, 4 + 4, 4 + 4}, Row{8, 8 + 4, 4 + 4}, Row{9, 12 + 4, 8 + 4},
                         Row{256, 256 + 4, 128 + 4}, Row{257, 260 + 8, 132 + 8}, Row{65536, 65536 + 1024, 32768 + 1024},
                         Row{1000003, 1000004 + 4 * 3907, 500004 + 4 * 3907}}) {
    EXPECT_EQ(message_bytes(BlockCode::Int8, row.numel), row.int8) << row.numel;
    EXPECT_EQ(message_bytes(BlockCode::Int4, row.numel), row.int4) << row.numel;
  }
}

TEST(BlockCodes, EveryPairOfNibblesComesBack) {
  for (std::int32_t low = -7; low <= 7; ++low) {
    for (std::int32_t high = -7; high <= 7; ++high) {
      EXPECT_EQ(low_code(pack_codes(low, high)), low);
      EXPECT_EQ(high_code(pack_codes(low, high)), high);
    }
  }
}

// One block through the definition.
std::vector<float> there_and_back(const std::vector<float>& values, BlockCode code) {
  std::uint32_t largest = 0;
  for (const float value : values) largest = std::max(largest, float_bits(value) & 0x7fffffffu);
  const BlockScale scale = block_scale(largest);
  std::vector<float> back;
  for (const float value : values) {
    const std::int32_t integer = encode_in_block(value, scale.inverse, largest_code(code));
    EXPECT_LE(std::abs(integer), code == BlockCode::Int8 ? 127 : 7);
    back.push_back(decode_in_block(integer, scale.stored, code_step(code)));
  }
  return back;
}

// Blocks of one size and of many, from the smallest normal numbers to the largest finite ones.
std::vector<float> random_block(std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(1 + random() % kScaleBlock);
  const int exponent = static_cast<int>(random() % 250) - 124;
  const bool many_sizes = random() % 2 == 0;
  for (float& value : values) {
    const float size = many_sizes ? std::exp2(-static_cast<float>(random() % 20)) : 1.0f;
    value = std::ldexp(std::fmod(normal(random) * size, 2.0f), exponent);
  }
  return values;
}

TEST(BlockCodes, AnElementIsOffByAtMostHalfAStepOfTheBlocksLargestMagnitude) {
  const std::uint64_t seed = test::test_seed(41);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 2000; ++round) {
    const std::vector<float> values = random_block(random);
    double largest = 0;
    for (const float value : values) largest = std::max(largest, std::abs(static_cast<double>(value)));
    if (largest < 0x1p-126) continue;
    for (const BlockCode code : kCodes) {
      const std::vector<float> back = there_and_back(values, code);

      // 1/254 and 1/14, and three roundings of fp32.
      const double bound = largest * (0.5 / static_cast<double>(largest_code(code)) + 3 * 0x1p-24);
      double worst = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        worst = std::max(worst, std::abs(static_cast<double>(back[i]) - static_cast<double>(values[i])));
      }
      ASSERT_LE(worst, bound);
    }
  }
}

TEST(BlockCodes, ZeroAndTheLargestMagnitudeComeBackExactly) {
  const std::uint64_t seed = test::test_seed(42);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 100000; ++round) {
    const float largest = float_from_bits(static_cast<std::uint32_t>(random()));
    if (!std::isfinite(largest) || std::abs(largest) < 0x1p-126f) continue;
    for (const BlockCode code : kCodes) {
      EXPECT_EQ(there_and_back({0, largest, -largest}, code), (std::vector<float>{0, largest, -largest}));
    }
  }
}

TEST(BlockCodes, HalfwayBetweenTwoStepsTakesTheEvenOne) {
  for (const auto& [value, expected] :
       {std::pair{0.5f, 0.0f}, {1.5f, 2.0f}, {2.5f, 2.0f}, {-0.5f, 0.0f}, {-1.5f, -2.0f}}) {
    EXPECT_EQ(encode_in_block(value / 8, 1.0f, 8.0f), static_cast<std::int32_t>(expected));
  }
}

TEST(BlockCodes, ABlockWithANonFiniteElementBecomesNanAsAWhole) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad :
       {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(), float_from_bits(0x7f800001u)}) {
    for (const BlockCode code : kCodes) {
      for (const float value : there_and_back({0, 1, bad, -3}, code)) EXPECT_TRUE(std::isnan(value));
    }
  }
}

TEST(BlockCodes, ABlockOfSubnormalsBecomesZero) {
  for (const BlockCode code : kCodes) {
    EXPECT_EQ(there_and_back({0x1p-127f, -0x1p-149f}, code), (std::vector<float>{0, 0}));
  }
}

// So a weight that is coded on its way to a node and again inside it is rounded once.
TEST(BlockCodes, CodingWhatWasDecodedChangesNothingInAnyType) {
  const std::uint64_t seed = test::test_seed(43);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  test::PlainMath math;
  for (int round = 0; round < 2000; ++round) {
    std::vector<float> values = random_block(random);
    for (const DType dtype : {DType::F32, DType::BF16, DType::F16}) {
      for (const BlockCode code : kCodes) {
        SCOPED_TRACE(std::string(name_of(dtype)) + (code == BlockCode::Int8 ? " int8" : " int4"));
        std::vector<float> once(values.size()), twice(values.size());
        std::vector<std::byte> bytes(message_bytes(code, values.size()));
        const TensorSpan message{bytes.data(), DType::U8, bytes.size()};
        const auto as = [&](std::vector<float>& elements) {
          return TensorSpan{reinterpret_cast<std::byte*>(elements.data()), dtype, elements.size()};
        };
        for (std::size_t i = 0; i < values.size(); ++i) test::store_element(as(once), i, values[i]);

        math.quantize(message, as(once), code);
        math.dequantize(as(once), message, code);
        math.quantize(message, as(once), code);
        math.dequantize(as(twice), message, code);

        for (std::size_t i = 0; i < values.size(); ++i) {
          const float a = test::load_element(as(once), i), b = test::load_element(as(twice), i);
          ASSERT_TRUE(float_bits(a) == float_bits(b) || (std::isnan(a) && std::isnan(b))) << i << ": " << a << " " << b;
        }
      }
    }
  }
}

}  // namespace
}  // namespace strata
