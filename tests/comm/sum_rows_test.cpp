#include "comm/sum_rows.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "support/plain_math.h"

namespace strata::test {
namespace {

// fp32 rows whose sum depends on the order, in more than one chunk.
TEST(SumRows, AddsInRowOrderAcrossChunks) {
  const std::size_t row = comm::kSumChunk + 3;
  std::vector<float> full;
  for (const float value : {1e8F, 1.0F, -1e8F}) full.insert(full.end(), row, value);
  std::vector<float> scratch(comm::kSumChunk);
  PlainMath math;

  comm::sum_rows(math, {reinterpret_cast<std::byte*>(full.data()), DType::F32, full.size()}, 3, 1,
                 {reinterpret_cast<std::byte*>(scratch.data()), DType::F32, scratch.size()});

  for (std::size_t i = 0; i < row; ++i) {
    ASSERT_EQ(full[row + i], 0.0F) << "1 is lost in 1e8; added last it would not be";
    ASSERT_EQ(full[i], 1e8F) << "other rows stay";
  }
}

TEST(SumRows, SixteenBitRowsAreRoundedOnce) {
  // 1 + 1/256 + 1/256: bf16 has 8 bits of mantissa, so rounding after each addition would give 1 + 1/64 or 1.
  std::vector<std::uint16_t> full = {float_to_bf16(1.0F), float_to_bf16(1.0F / 256), float_to_bf16(1.0F / 256)};
  std::vector<float> scratch(comm::kSumChunk);
  PlainMath math;

  comm::sum_rows(math, {reinterpret_cast<std::byte*>(full.data()), DType::BF16, 3}, 3, 0,
                 {reinterpret_cast<std::byte*>(scratch.data()), DType::F32, scratch.size()});

  EXPECT_EQ(bf16_to_float(full[0]), 1.0F + 1.0F / 128);
}

TEST(SumRows, RefusesRowsThatAreNotEqual) {
  std::vector<float> full(4), scratch(comm::kSumChunk);
  PlainMath math;
  const TensorSpan span{reinterpret_cast<std::byte*>(full.data()), DType::F32, full.size()};
  const TensorSpan room{reinterpret_cast<std::byte*>(scratch.data()), DType::F32, scratch.size()};
  EXPECT_THROW(comm::sum_rows(math, span, 3, 0, room), ContractViolation);
  EXPECT_THROW(comm::sum_rows(math, span, 2, 2, room), ContractViolation);
}

}  // namespace
}  // namespace strata::test
