#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/error.h"
#include "core/parallel.h"
#include "cpu_adam/cpu_shard_math.h"

namespace strata::cpu_adam {
namespace {

template <typename T>
TensorSpan span_of(std::vector<T>& values, DType dtype) {
  return {reinterpret_cast<std::byte*>(values.data()), dtype, values.size()};
}

// The value of a finite 16-bit code, from its definition and not from core/numeric.h.
double value_of(std::uint16_t code, DType dtype) {
  const int mantissa_bits = dtype == DType::BF16 ? 7 : 10;
  const int bias = dtype == DType::BF16 ? 127 : 15;
  const int exponent = (code & 0x7fff) >> mantissa_bits;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                         : std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
  return code & 0x8000 ? -magnitude : magnitude;
}

class ShardMathOnIsa : public ::testing::TestWithParam<Isa> {
 protected:
  std::vector<std::uint16_t> to_16_bit(std::vector<float> values, DType dtype) {
    std::vector<std::uint16_t> codes(values.size());
    math_.cast(span_of(codes, dtype), span_of(values, DType::F32));
    return codes;
  }

  std::unique_ptr<Parallel> parallel_ = make_thread_pool(2);
  CpuShardMath math_{*parallel_, GetParam()};
};

TEST_P(ShardMathOnIsa, DecodesEveryCodeToItsValue) {
  for (const DType dtype : {DType::BF16, DType::F16}) {
    const std::uint16_t infinity = dtype == DType::BF16 ? 0x7f80 : 0x7c00;
    std::vector<std::uint16_t> codes(65536);
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint16_t>(i);
    std::vector<float> values(65536);

    math_.cast(span_of(values, DType::F32), span_of(codes, dtype));

    for (std::size_t i = 0; i < codes.size(); ++i) {
      const int magnitude = codes[i] & 0x7fff;
      if (magnitude > infinity) {
        ASSERT_TRUE(std::isnan(values[i])) << i;
      } else if (magnitude == infinity) {
        ASSERT_TRUE(std::isinf(values[i])) << i;
        ASSERT_EQ(std::signbit(values[i]), (codes[i] & 0x8000) != 0) << i;
      } else {
        ASSERT_EQ(static_cast<double>(values[i]), value_of(codes[i], dtype)) << i;
        ASSERT_EQ(std::signbit(values[i]), (codes[i] & 0x8000) != 0) << i;
      }
    }
  }
}

// Between each code and the next: just below the middle goes down, the middle and just above go away from zero. The
// code after the largest finite one is infinity, so overflow is covered too.
TEST_P(ShardMathOnIsa, RoundsToNearestWithTiesAwayFromZero) {
  for (const DType dtype : {DType::BF16, DType::F16}) {
    const std::uint16_t infinity = dtype == DType::BF16 ? 0x7f80 : 0x7c00;
    std::vector<float> inputs;
    std::vector<std::uint16_t> expected;
    for (std::uint16_t code = 0; code < infinity; ++code) {
      const auto next = static_cast<std::uint16_t>(code + 1);
      const float middle = static_cast<float>((value_of(code, dtype) + value_of(next, dtype)) / 2);
      for (const std::uint16_t sign : {std::uint16_t{0}, std::uint16_t{0x8000}}) {
        const float signed_middle = sign ? -middle : middle;
        inputs.insert(inputs.end(),
                      {std::nextafter(signed_middle, 0.0f), signed_middle,
                       std::nextafter(signed_middle, signed_middle * 2), static_cast<float>(value_of(code, dtype))});
        expected.insert(expected.end(),
                        {static_cast<std::uint16_t>(code | sign), static_cast<std::uint16_t>(next | sign),
                         static_cast<std::uint16_t>(next | sign), code});
      }
    }

    const std::vector<std::uint16_t> codes = to_16_bit(inputs, dtype);

    for (std::size_t i = 0; i < codes.size(); ++i)
      ASSERT_EQ(codes[i], expected[i]) << inputs[i] << " as " << name_of(dtype);
  }
}

TEST_P(ShardMathOnIsa, KeepsNonFiniteValuesAndSigns) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  float low_payload;  // the payload's set bit is lost by cutting to 16 bits, which must not turn a NaN into an infinity
  const std::uint32_t bits = 0x7f800001u;
  std::memcpy(&low_payload, &bits, 4);
  const std::vector<float> values = {infinity, -infinity, 0.0f, -0.0f, 1e-45f, -1e-45f, 3.4e38f, nan, low_payload};

  const std::vector<std::uint16_t> bf16 = to_16_bit(values, DType::BF16), half = to_16_bit(values, DType::F16);

  const std::vector<std::uint16_t> bf16_start = {0x7f80, 0xff80, 0, 0x8000, 0, 0x8000, 0x7f80};
  const std::vector<std::uint16_t> half_start = {0x7c00, 0xfc00, 0, 0x8000, 0, 0x8000, 0x7c00};
  EXPECT_TRUE(std::equal(bf16_start.begin(), bf16_start.end(), bf16.begin()));
  EXPECT_TRUE(std::equal(half_start.begin(), half_start.end(), half.begin()));
  for (const std::size_t i : {7u, 8u}) {
    EXPECT_GT(bf16[i] & 0x7fff, 0x7f80);
    EXPECT_GT(half[i] & 0x7fff, 0x7c00);
  }
}

TEST_P(ShardMathOnIsa, AccumulatesInFp32AndRoundsOnce) {
  std::vector<float> sum(70001, 1.0f), addend(70001, 0x1p-20f);
  std::vector<std::uint16_t> narrow(70001, 0x3f80),
      half_unit(70001, 0x3b80);  // bf16 1 and 2^-8, half of its last place

  math_.accumulate(span_of(sum, DType::F32), span_of(addend, DType::F32));
  math_.accumulate(span_of(narrow, DType::BF16), span_of(half_unit, DType::BF16));
  math_.accumulate(span_of(addend, DType::F32), span_of(half_unit, DType::BF16));

  EXPECT_EQ(sum, std::vector<float>(70001, 1.0f + 0x1p-20f));
  EXPECT_EQ(narrow, std::vector<std::uint16_t>(70001, 0x3f81));  // the tie goes away from zero
  EXPECT_EQ(addend, std::vector<float>(70001, 0x1p-20f + 0x1p-8f));
}

// More than one chunk of the sum, and parts that a second thread takes.
TEST_P(ShardMathOnIsa, AddsRowsInTheirOrder) {
  const std::size_t row = 70003;
  std::vector<float> rows;
  for (const float value : {1e8F, 1.0F, -1e8F}) rows.insert(rows.end(), row, value);

  math_.sum_rows(span_of(rows, DType::F32), 3, 1);

  for (std::size_t i = 0; i < row; ++i) {
    ASSERT_EQ(rows[row + i], 0.0F) << "1 is lost in 1e8; added last it would not be";
    ASSERT_EQ(rows[i], 1e8F) << "other rows stay";
    ASSERT_EQ(rows[2 * row + i], -1e8F) << "other rows stay";
  }
}

TEST_P(ShardMathOnIsa, RoundsASumOfRowsOnce) {
  // 1 + 1/256 + 1/256: bf16 has 8 bits of mantissa, so rounding after each addition would give 1 + 1/64 or 1.
  std::vector<std::uint16_t> rows = {0x3f80, 0x3b80, 0x3b80};

  math_.sum_rows(span_of(rows, DType::BF16), 3, 0);

  EXPECT_EQ(rows[0], 0x3f81);  // 1 + 1/128
}

TEST_P(ShardMathOnIsa, RefusesRowsThatAreNotEqual) {
  std::vector<float> rows(4);
  EXPECT_THROW(math_.sum_rows(span_of(rows, DType::F32), 3, 0), ContractViolation);
  EXPECT_THROW(math_.sum_rows(span_of(rows, DType::F32), 2, 2), ContractViolation);
  EXPECT_THROW(math_.sum_rows(span_of(rows, DType::F32), 0, 0), ContractViolation);
}

// The definition in docs/numerics.md, 4, written out.
double defined_sum(const std::vector<float>& values, std::size_t first, std::size_t last) {
  double lanes[16] = {};
  for (std::size_t i = first; i < last; ++i) {
    lanes[(i - first) % 16] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  for (std::size_t width = 8; width > 0; width /= 2) {
    for (std::size_t k = 0; k < width; ++k) lanes[k] += lanes[k + width];
  }
  return lanes[0];
}

TEST_P(ShardMathOnIsa, BlockSumsFollowTheFixedOrderOnEveryThreadCount) {
  constexpr std::size_t block = ShardMath::kNormBlock;
  std::vector<float> values(5 * block + 1237);
  std::mt19937_64 random(11);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random) * 1e3f;
  for (const std::size_t threads : {1u, 2u, 3u, 7u}) {
    SCOPED_TRACE(threads);
    const auto parallel = make_thread_pool(threads);
    CpuShardMath math(*parallel, GetParam());
    std::vector<double> sums(6);

    math.block_sums_of_squares(span_of(values, DType::F32), sums);

    for (std::size_t i = 0; i < sums.size(); ++i) {
      EXPECT_EQ(sums[i], defined_sum(values, i * block, std::min((i + 1) * block, values.size()))) << i;
    }
  }
}

TEST_P(ShardMathOnIsa, ANonFiniteElementMarksItsBlockOnly) {
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values(3 * ShardMath::kNormBlock, std::numeric_limits<float>::max());
    values[ShardMath::kNormBlock + 12345] = bad;
    std::vector<double> sums(3);

    math_.block_sums_of_squares(span_of(values, DType::F32), sums);

    EXPECT_TRUE(std::isfinite(sums[0]));
    EXPECT_FALSE(std::isfinite(sums[1]));
    EXPECT_TRUE(std::isfinite(sums[2]));
  }
}

TEST_P(ShardMathOnIsa, RefusesSizesAndTypesThatDoNotFit) {
  std::vector<float> three(3), four(4);
  std::vector<double> no_sums;

  EXPECT_THROW(math_.cast(span_of(three, DType::F32), span_of(four, DType::F32)), ContractViolation);
  EXPECT_THROW(math_.accumulate(span_of(three, DType::F32), span_of(four, DType::F32)), ContractViolation);
  EXPECT_THROW(math_.cast(span_of(three, DType::I32), span_of(three, DType::F32)), ContractViolation);
  EXPECT_THROW(math_.block_sums_of_squares(span_of(three, DType::F32), no_sums), ContractViolation);
}

INSTANTIATE_TEST_SUITE_P(CpuShardMath, ShardMathOnIsa, ::testing::ValuesIn(usable_isas()),
                         [](const auto& instance) { return std::string(name_of(instance.param)); });

}  // namespace
}  // namespace strata::cpu_adam
