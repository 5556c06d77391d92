// [Note: block codes] on every instruction set against the scalar loops, and those against the definition.
#include "cpu_adam/block_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/parallel.h"
#include "cpu_adam/cpu_shard_math.h"
#include "support/guarded_array.h"
#include "support/plain_math.h"
#include "support/test_seed.h"

namespace strata::cpu_adam {
namespace {

using test::GuardedArray;
constexpr DType kTypes[] = {DType::F32, DType::BF16, DType::F16};
constexpr BlockCode kCodes[] = {BlockCode::Int8, BlockCode::Int4};

std::string text_of(Isa isa, BlockCode code, DType dtype, std::size_t numel) {
  return std::string(name_of(isa)) + (code == BlockCode::Int8 ? " int8 " : " int4 ") + std::string(name_of(dtype)) +
         " x " + std::to_string(numel);
}

// What occurs in a message: values of one size, of many sizes, with zeros, tiny, all zero, one that is not finite, and
// any bits at all (0 to 6).
constexpr int kStyles = 7;
void fill(TensorSpan span, std::mt19937_64& random, int style) {
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < span.numel; ++i) {
    float value = normal(random);
    if (style == 1) value *= std::exp2(-static_cast<float>(random() % 24));
    if (style == 2 && random() % 4 != 0) value = 0;
    if (style == 3) value *= 0x1p-126f;
    if (style == 4) value = 0;
    test::store_element(span, i, value);
  }
  if (style == 5 && span.numel > 0) {
    test::store_element(span, random() % span.numel, random() % 2 == 0 ? INFINITY : -NAN);
  }
  if (style == 6) {
    for (std::size_t i = 0; i < span.bytes(); ++i) span.data[i] = static_cast<std::byte>(random());
  }
}

// Equal bits, or both NaN, whose sign and payload are not promised (docs/numerics.md, 2).
::testing::AssertionResult same_values(TensorSpan a, TensorSpan b) {
  for (std::size_t i = 0; i < a.numel; ++i) {
    const float x = test::load_element(a, i), y = test::load_element(b, i);
    if (float_bits(x) == float_bits(y) || (std::isnan(x) && std::isnan(y))) continue;
    return ::testing::AssertionFailure() << "element " << i << ": " << x << " and " << y;
  }
  return ::testing::AssertionSuccess();
}

void expect_equal_block(Isa isa, BlockCode code, DType dtype, std::size_t numel, int style, std::mt19937_64& random) {
  SCOPED_TRACE(text_of(isa, code, dtype, numel) + " style " + std::to_string(style));
  const BlockKernels& kernels = block_kernels(isa);
  const BlockKernels& definition = scalar::block_kernels();
  const auto c = static_cast<std::size_t>(code);
  const std::size_t t = encoding_index(dtype);
  const GuardedArray values(dtype, numel, numel % 5);
  const GuardedArray codes(DType::U8, code_bytes(code, numel), numel % 7),
      expected_codes(DType::U8, codes.span().numel, 0);
  const GuardedArray decoded(dtype, numel, 3), expected_decoded(dtype, numel, 3);
  const GuardedArray sum(DType::F32, numel, 2), expected_sum(DType::F32, numel, 2);
  fill(values.span(), random, style);
  fill(sum.span(), random, 0);
  if (numel > 0) std::memcpy(expected_sum.span().data, sum.span().data, sum.span().bytes());

  const float scale = kernels.encode[c][t](values.span().data, codes.span().as<std::uint8_t>(), numel);
  kernels.decode[c][t](codes.span().as<std::uint8_t>(), scale, decoded.span().data, numel);
  kernels.decode_add[c](codes.span().as<std::uint8_t>(), scale, sum.span().data, numel);

  const float expected_scale =
      definition.encode[c][t](values.span().data, expected_codes.span().as<std::uint8_t>(), numel);
  definition.decode[c][t](codes.span().as<std::uint8_t>(), scale, expected_decoded.span().data, numel);
  definition.decode_add[c](codes.span().as<std::uint8_t>(), scale, expected_sum.span().data, numel);
  ASSERT_EQ(float_bits(scale), float_bits(expected_scale));
  ASSERT_TRUE(codes.same_elements(expected_codes));
  ASSERT_TRUE(same_values(decoded.span(), expected_decoded.span()));
  ASSERT_TRUE(same_values(sum.span(), expected_sum.span()));
  ASSERT_TRUE(codes.guards_intact() && decoded.guards_intact() && sum.guards_intact());
}

TEST(BlockKernels, EveryIsaEqualsTheScalarLoopsForEveryLength) {
  std::mt19937_64 random(20260201);
  for (const Isa isa : usable_isas()) {
    for (const BlockCode code : kCodes) {
      for (const DType dtype : kTypes) {
        for (int style = 0; style < kStyles; ++style) {
          for (std::size_t numel = 0; numel <= kScaleBlock; ++numel) {
            expect_equal_block(isa, code, dtype, numel, style, random);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(BlockKernels, EveryCodeByteDecodesAlike) {
  std::vector<std::uint8_t> codes(kScaleBlock);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i);
  for (const Isa isa : usable_isas()) {
    for (const BlockCode code : kCodes) {
      for (std::size_t first = 0; first < (code == BlockCode::Int8 ? 1u : 129u); first += 128) {
        std::vector<float> actual(kScaleBlock), expected(kScaleBlock);
        const auto decode = [&](const BlockKernels& kernels, std::vector<float>& values) {
          kernels.decode[static_cast<std::size_t>(code)][F32::kIndex](
              codes.data() + first, 1.7f, reinterpret_cast<std::byte*>(values.data()), values.size());
        };

        decode(block_kernels(isa), actual);

        decode(scalar::block_kernels(), expected);
        EXPECT_EQ(std::memcmp(actual.data(), expected.data(), sizeof(float) * kScaleBlock), 0)
            << text_of(isa, code, DType::F32, first);
      }
    }
  }
}

class BlockMathOnIsa : public ::testing::TestWithParam<Isa> {};

// Whole messages, split over threads, against one element at a time.
TEST_P(BlockMathOnIsa, MessagesFollowTheDefinitionOnEveryThreadCount) {
  const std::uint64_t seed = test::test_seed(51);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  test::PlainMath definition;
  for (const std::size_t threads : {1u, 2u, 3u}) {
    const auto parallel = make_thread_pool(threads);
    CpuShardMath math(*parallel, GetParam());
    for (const BlockCode code : kCodes) {
      for (const DType dtype : kTypes) {
        for (const std::size_t numel : {0u, 1u, 255u, 257u, 65536u, 200003u}) {
          SCOPED_TRACE(text_of(GetParam(), code, dtype, numel) + ", threads " + std::to_string(threads));
          const GuardedArray values(dtype, numel, 1), decoded(dtype, numel, 1), expected_decoded(dtype, numel, 1);
          const GuardedArray message(DType::U8, message_bytes(code, numel), 4);
          const GuardedArray expected(DType::U8, message_bytes(code, numel), 4);
          const GuardedArray sum(DType::F32, numel, 1), expected_sum(DType::F32, numel, 1);
          fill(values.span(), random, 1);
          fill(sum.span(), random, 0);
          math.cast(expected_sum.span(), sum.span());

          math.quantize(message.span(), values.span(), code);
          math.dequantize(decoded.span(), message.span(), code);
          math.dequantize_add(sum.span(), message.span(), code);

          definition.quantize(expected.span(), values.span(), code);
          definition.dequantize(expected_decoded.span(), expected.span(), code);
          definition.dequantize_add(expected_sum.span(), expected.span(), code);
          ASSERT_TRUE(message.same_elements(expected));
          ASSERT_TRUE(decoded.same_elements(expected_decoded));
          ASSERT_TRUE(sum.same_elements(expected_sum));
          ASSERT_TRUE(message.guards_intact() && decoded.guards_intact() && sum.guards_intact());
        }
      }
    }
  }
}

TEST_P(BlockMathOnIsa, RefusesSizesAndTypesThatDoNotFit) {
  const auto parallel = make_thread_pool(1);
  CpuShardMath math(*parallel, GetParam());
  std::vector<std::byte> bytes(64);
  const TensorSpan values{bytes.data(), DType::F32, 3}, halves{bytes.data(), DType::BF16, 3};
  const TensorSpan message{bytes.data() + 32, DType::U8, message_bytes(BlockCode::Int8, 3)};

  EXPECT_THROW(math.quantize({message.data, DType::U8, message.numel - 1}, values, BlockCode::Int8), ContractViolation);
  EXPECT_THROW(math.quantize({message.data, DType::I8, message.numel}, values, BlockCode::Int8), ContractViolation);
  EXPECT_THROW(math.dequantize({bytes.data(), DType::I32, 3}, message, BlockCode::Int8), ContractViolation);
  EXPECT_THROW(math.dequantize({bytes.data(), DType::F32, 7}, message, BlockCode::Int8), ContractViolation);
  EXPECT_THROW(math.dequantize_add(halves, message, BlockCode::Int8), ContractViolation);
}

INSTANTIATE_TEST_SUITE_P(CpuShardMath, BlockMathOnIsa, ::testing::ValuesIn(usable_isas()),
                         [](const auto& instance) { return std::string(name_of(instance.param)); });

}  // namespace
}  // namespace strata::cpu_adam
