#include "cpu_adam/state_conversion.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/state_encodings.h"
#include "support/test_seed.h"

namespace strata::cpu_adam {
namespace {

template <typename T>
TensorSpan span_of(std::vector<T>& values, DType dtype) {
  return {reinterpret_cast<std::byte*>(values.data()), dtype, values.size()};
}

constexpr std::size_t kNumel = 200001;

class StateConversion : public ::testing::Test {
 protected:
  std::vector<float> random_values(bool negative_too) {
    std::mt19937_64 random(test::test_seed(41));
    std::normal_distribution<float> normal;
    std::vector<float> values(kNumel);
    for (float& value : values) value = 1e-3f * (negative_too ? normal(random) : std::abs(normal(random)));
    return values;
  }

  std::unique_ptr<Parallel> parallel_ = make_thread_pool(2);
};

TEST_F(StateConversion, AMasterAndItsRemainderAreOneNumber) {
  std::vector<float> master = random_values(true), back(kNumel);
  std::vector<std::uint16_t> param(kNumel), remainder(kNumel);

  split_master(*parallel_, span_of(param, DType::BF16), span_of(remainder, DType::U16), span_of(master, DType::F32));
  join_master(*parallel_, span_of(back, DType::F32), span_of(param, DType::BF16), span_of(remainder, DType::U16));

  EXPECT_EQ(std::memcmp(back.data(), master.data(), kNumel * 4), 0);
  for (std::size_t i = 0; i < kNumel; ++i) ASSERT_EQ(param[i], float_to_bf16(master[i])) << i;
}

TEST_F(StateConversion, Bf16MomentsAreRoundedToNearestAndComeBackExactly) {
  std::vector<float> values = random_values(true), back(kNumel);
  std::vector<std::uint16_t> codes(kNumel);
  const TensorSpan stored[] = {span_of(codes, DType::BF16)};

  encode_moment(*parallel_, MomentRange::Signed, stored, span_of(values, DType::F32));
  decode_moment(*parallel_, MomentRange::Signed, span_of(back, DType::F32), stored);

  for (std::size_t i = 0; i < kNumel; ++i) ASSERT_EQ(back[i], bf16_to_float(float_to_bf16(values[i]))) << i;
}

TEST_F(StateConversion, EightBitMomentsComeBackWithinHalfAnIntervalAndThenStay) {
  for (const MomentRange range : {MomentRange::Signed, MomentRange::NotNegative}) {
    std::vector<float> values = random_values(range == MomentRange::Signed), back(kNumel), again(kNumel);
    std::vector<std::uint8_t> codes(kNumel);
    std::vector<float> scales((kNumel + kScaleBlock - 1) / kScaleBlock);
    const TensorSpan stored[] = {span_of(codes, DType::U8), span_of(scales, DType::F32)};

    encode_moment(*parallel_, range, stored, span_of(values, DType::F32));
    decode_moment(*parallel_, range, span_of(back, DType::F32), stored);

    for (std::size_t i = 0; i < kNumel; ++i) {
      ASSERT_LE(std::abs(back[i] - values[i]), scales[i / kScaleBlock] * (0.45f / 64 + 1e-6f)) << i;
    }
    // The largest magnitude of a block is an entry unless it is negative; then the block shrinks by 0.7 %, once.
    if (range == MomentRange::NotNegative) {
      encode_moment(*parallel_, range, stored, span_of(back, DType::F32));
      decode_moment(*parallel_, range, span_of(again, DType::F32), stored);
      EXPECT_EQ(again, back);
    }
  }
}

TEST_F(StateConversion, RefusesSpansThatDoNotFit) {
  std::vector<float> values(10), scales(2);
  std::vector<std::uint8_t> codes(10);
  std::vector<std::uint16_t> halves(10), short_halves(9);
  const TensorSpan two_scales[] = {span_of(codes, DType::U8), span_of(scales, DType::F32)};

  EXPECT_THROW(encode_moment(*parallel_, MomentRange::Signed, two_scales, span_of(values, DType::F32)),
               ContractViolation);
  EXPECT_THROW(decode_moment(*parallel_, MomentRange::Signed, span_of(values, DType::F32), {}), ContractViolation);
  EXPECT_THROW(
      split_master(*parallel_, span_of(halves, DType::F16), span_of(halves, DType::U16), span_of(values, DType::F32)),
      ContractViolation);
  EXPECT_THROW(join_master(*parallel_, span_of(values, DType::F32), span_of(halves, DType::BF16),
                           span_of(short_halves, DType::U16)),
               ContractViolation);
}

}  // namespace
}  // namespace strata::cpu_adam
