// Shard arithmetic on a GPU has the bits of the CPU's.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/block_codes.h"
#include "core/error.h"
#include "core/parallel.h"
#include "cpu_adam/cpu_shard_math.h"
#include "gpu/gpu.h"
#include "support/guarded_array.h"
#include "support/optimizer_shard.h"

namespace strata::test {
namespace {

constexpr std::array kTypes = {DType::F32, DType::BF16, DType::F16};
constexpr std::array<std::size_t, 11> kSizes = {0, 1, 7, 255, 256, 257, 1000, 65535, 65536, 65537, 200003};

// Ordinary values of many magnitudes, zeros, subnormals and values that overflow 16 bits. No NaN, whose payload may
// differ, and no infinities of both signs, whose sum is one.
GuardedArray values(DType dtype, std::size_t numel, unsigned seed) {
  GuardedArray array(dtype, numel, seed % 5);
  std::mt19937 random(seed);
  for (std::size_t i = 0; i < numel; ++i) {
    const double mantissa = 1 + static_cast<double>(random() % 4096) / 4096;
    const auto magnitude = static_cast<float>(std::ldexp(mantissa, static_cast<int>(random() % 60) - 40));
    const float sign = random() % 2 == 0 ? 1.0f : -1.0f;
    float value = sign * magnitude;
    if (i % 101 == 7) value = 0;
    if (i % 103 == 9) value = 1e-40f * sign;
    if (i % 4099 == 11) value = 3.3e38f;
    encode(array.span(), i, value);
  }
  return array;
}

class GpuShardMath : public ::testing::Test {
 protected:
  // Runs `work(math, destination, source)` on both and compares all bytes of the destination.
  template <typename Work>
  void expect_same(DType to, std::size_t to_numel, const GuardedArray& source, Work work) {
    const GuardedArray mine = values(to, to_numel, 3), expected = values(to, to_numel, 3);
    work(*gpu_, mine.span(), source.span());
    work(cpu_, expected.span(), source.span());
    ASSERT_TRUE(mine.same_elements(expected));
    ASSERT_TRUE(mine.guards_intact());
  }

  std::unique_ptr<Parallel> parallel_ = make_thread_pool(0);
  cpu_adam::CpuShardMath cpu_{*parallel_};
  std::unique_ptr<ShardMath> gpu_ = hosted_math();
};

template <typename Each>
void for_types_and_sizes(Each each) {
  for (const DType to : kTypes) {
    for (const DType from : kTypes) {
      for (const std::size_t numel : kSizes) {
        SCOPED_TRACE(std::string(name_of(to)) + " <- " + std::string(name_of(from)) + " x " + std::to_string(numel));
        each(to, from, numel);
      }
    }
  }
}

TEST_F(GpuShardMath, CastsAsTheCpuDoes) {
  for_types_and_sizes([&](DType to, DType from, std::size_t numel) {
    expect_same(to, numel, values(from, numel, 2),
                [](ShardMath& math, TensorSpan out, TensorSpan in) { math.cast(out, in); });
  });
}

TEST_F(GpuShardMath, AccumulatesAsTheCpuDoes) {
  for_types_and_sizes([&](DType to, DType from, std::size_t numel) {
    expect_same(to, numel, values(from, numel, 2),
                [](ShardMath& math, TensorSpan sum, TensorSpan in) { math.accumulate(sum, in); });
  });
}

TEST_F(GpuShardMath, AddsRowsAsTheCpuDoes) {
  for (const DType dtype : kTypes) {
    for (const std::size_t row : kSizes) {
      for (const std::size_t count : {2u, 5u}) {
        SCOPED_TRACE(std::string(name_of(dtype)) + " x " + std::to_string(count) + " x " + std::to_string(row));
        const GuardedArray none(dtype, 0, 0);
        expect_same(dtype, count * row, none, [&](ShardMath& math, TensorSpan rows, TensorSpan /*source*/) {
          math.sum_rows(rows, count, count / 2);
        });
      }
    }
  }
}

TEST_F(GpuShardMath, AddsSquaresInTheOrderOfTheCpu) {
  for (const DType dtype : kTypes) {
    for (const std::size_t numel : kSizes) {
      SCOPED_TRACE(std::string(name_of(dtype)) + " x " + std::to_string(numel));
      const GuardedArray array = values(dtype, numel, 4);
      const std::size_t blocks = (numel + ShardMath::kNormBlock - 1) / ShardMath::kNormBlock;
      std::vector<double> mine(blocks, -1), expected(blocks, -2);

      gpu_->block_sums_of_squares(array.span(), mine);

      cpu_.block_sums_of_squares(array.span(), expected);
      ASSERT_EQ(mine, expected);
    }
  }
}

TEST_F(GpuShardMath, ANonFiniteElementMakesTheSumOfItsBlockNonFinite) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const GuardedArray array = values(DType::F32, 3 * ShardMath::kNormBlock, 5);
    for (std::size_t i = 0; i < array.span().numel; ++i) array.span().as<float>()[i] = 1;
    array.span().as<float>()[ShardMath::kNormBlock + 12345] = bad;
    std::vector<double> sums(3);

    gpu_->block_sums_of_squares(array.span(), sums);

    EXPECT_EQ(sums[0], ShardMath::kNormBlock);
    EXPECT_FALSE(std::isfinite(sums[1]));
    EXPECT_EQ(sums[2], ShardMath::kNormBlock);
  }
}

TEST_F(GpuShardMath, CodesAndDecodesMessagesAsTheCpuDoes) {
  for (const BlockCode code : {BlockCode::Int8, BlockCode::Int4}) {
    for (const DType dtype : kTypes) {
      for (const std::size_t numel : kSizes) {
        SCOPED_TRACE(std::string(name_of(dtype)) + " x " + std::to_string(numel));
        const std::size_t bytes = message_bytes(code, numel);
        GuardedArray source(dtype, numel, 0), message(DType::U8, bytes, 0);
        for (std::size_t i = 0; i < numel; ++i) {
          encode(source.span(), i, std::ldexp(static_cast<float>(i * 2654435761u % 4093) - 2046.0f, -12));
        }
        cpu_.quantize(message.span(), source.span(), code);
        GuardedArray on_gpu(DType::U8, bytes, 0);

        gpu_->quantize(on_gpu.span(), source.span(), code);

        ASSERT_TRUE(on_gpu.same_elements(message));
        expect_same(dtype, numel, message,
                    [&](ShardMath& math, TensorSpan out, TensorSpan in) { math.dequantize(out, in, code); });
        expect_same(DType::F32, numel, message,
                    [&](ShardMath& math, TensorSpan sum, TensorSpan in) { math.dequantize_add(sum, in, code); });
      }
    }
  }
}

TEST_F(GpuShardMath, RefusesSizesThatDoNotMatch) {
  const GuardedArray ten(DType::F32, 10, 0), nine(DType::F32, 9, 0);
  std::vector<double> two(2);

  EXPECT_THROW(gpu_->cast(ten.span(), nine.span()), ContractViolation);
  EXPECT_THROW(gpu_->accumulate(ten.span(), nine.span()), ContractViolation);
  EXPECT_THROW(gpu_->sum_rows(ten.span(), 3, 0), ContractViolation);
  EXPECT_THROW(gpu_->block_sums_of_squares(ten.span(), two), ContractViolation);
}

}  // namespace
}  // namespace strata::test
