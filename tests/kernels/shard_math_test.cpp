// The shard arithmetic of CUDA, its grids run on the host, against the scalar loops of cpu_adam.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "core/error.h"
#include "core/parallel.h"
#include "cpu_adam/cpu_shard_math.h"
#include "cuda/cuda_shard_math.h"
#include "cuda/current_stream.h"
#include "cuda/errors.h"
#include "kernels/block_codes_body.h"
#include "kernels/convert_body.h"
#include "kernels/fake_runtime.h"
#include "kernels/host_grids.h"
#include "kernels/shard_math.h"
#include "kernels/special_values.h"
#include "kernels/sum_lanes_body.h"
#include "kernels/sum_rows_body.h"
#include "support/guarded_array.h"
#include "support/test_seed.h"

namespace strata::kernels {
namespace {

using test::GuardedArray;

constexpr DType kTypes[] = {DType::F32, DType::BF16, DType::F16};
constexpr BlockCode kCodes[] = {BlockCode::Int8, BlockCode::Int4};

class CudaShardMath : public ::testing::Test {
 protected:
  // Ordinary numbers, with special ones at about every `rare`-th element; 0: none.
  void fill(const GuardedArray& array, std::size_t rare) {
    std::normal_distribution<float> normal;
    const TensorSpan span = array.span();
    for (std::size_t i = 0; i < span.numel; ++i) {
      const bool special = rare != 0 && random_() % rare == 0;
      test::encode(span, i, special ? test::special_value(random_) : normal(random_));
    }
  }
  static void copy(const GuardedArray& to, const GuardedArray& from) {
    if (from.span().numel > 0) std::memcpy(to.span().data, from.span().data, from.span().bytes());
  }

  const std::uint64_t seed_ = test::test_seed(12);
  const ::testing::ScopedTrace trace_{__FILE__, __LINE__, "seed " + std::to_string(seed_)};
  std::mt19937_64 random_{seed_};
  std::unique_ptr<Parallel> parallel_ = make_thread_pool(1);
  cpu_adam::CpuShardMath definition_{*parallel_, cpu_adam::Isa::Scalar};
  cuda::DeviceContext context_{0};
  std::unique_ptr<ShardMath> math_ = cuda::make_cuda_shard_math(context_);
  test::HostGrids grids_;
};

TEST_F(CudaShardMath, CastsAndAccumulatesAsTheScalarLoopsDo) {
  for (const DType to : kTypes) {
    for (const DType from : kTypes) {
      for (std::size_t numel = 0; numel <= 600; ++numel) {
        SCOPED_TRACE(std::string(name_of(to)) + " <- " + std::string(name_of(from)) + " x " + std::to_string(numel));
        // Aligned alike, differently, or not at all.
        const std::size_t shift = numel % 9, other_shift = numel % 2 == 0 ? shift : numel % 5;
        const GuardedArray source(from, numel, shift), cast(to, numel, other_shift), expected_cast(to, numel, 0);
        const GuardedArray sum(to, numel, other_shift), expected_sum(to, numel, 0);
        fill(source, 7);
        fill(sum, 9);
        copy(expected_sum, sum);
        grids_.next();

        math_->cast(cast.span(), source.span());
        math_->accumulate(sum.span(), source.span());

        definition_.cast(expected_cast.span(), source.span());
        definition_.accumulate(expected_sum.span(), source.span());
        ASSERT_TRUE(cast.same_elements(expected_cast));
        ASSERT_TRUE(test::same_values(sum.span(), expected_sum.span()));
        ASSERT_TRUE(cast.guards_intact() && sum.guards_intact());
      }
    }
  }
}

TEST_F(CudaShardMath, AddsRowsAsTheScalarLoopsDo) {
  for (const DType type : kTypes) {
    for (std::size_t count = 1; count <= 10; ++count) {
      for (std::size_t row = 0; row <= 300; row += row < 40 ? 1 : 8) {
        SCOPED_TRACE(std::string(name_of(type)) + " x " + std::to_string(count) + " x " + std::to_string(row));
        const GuardedArray rows(type, count * row, row % 9), expected(type, count * row, 0);
        fill(rows, 20);
        copy(expected, rows);
        grids_.next();

        math_->sum_rows(rows.span(), count, row % count);

        definition_.sum_rows(expected.span(), count, row % count);
        ASSERT_TRUE(test::same_values(rows.span(), expected.span()));
        ASSERT_TRUE(rows.guards_intact());
      }
    }
  }
}

TEST_F(CudaShardMath, CopiesOfOneTypeKeepEveryBitOfANaN) {
  for (const DType type : kTypes) {
    const GuardedArray source(type, 40, 1), copied(type, 40, 3);
    const std::uint32_t signalling = type == DType::F32 ? 0x7f800001u : type == DType::BF16 ? 0x7f81u : 0x7c01u;
    for (std::size_t i = 0; i < 40; ++i) {
      std::memcpy(source.span().data + i * bytes_of(type), &signalling, bytes_of(type));
    }

    math_->cast(copied.span(), source.span());

    EXPECT_TRUE(copied.same_elements(source)) << name_of(type);
  }
}

TEST_F(CudaShardMath, BlockSumsHaveTheBitsOfTheFixedOrder) {
  constexpr std::size_t block = ShardMath::kNormBlock;
  for (const DType type : kTypes) {
    for (const std::size_t numel : {0ul, 1ul, 3ul, 15ul, 16ul, 17ul, 127ul, 128ul, 129ul, 1000ul, block - 1, block,
                                    block + 1, 3 * block + 12345}) {
      for (const std::size_t shift : {0u, 1u, 8u}) {
        SCOPED_TRACE(std::string(name_of(type)) + " x " + std::to_string(numel) + " + " + std::to_string(shift));
        const GuardedArray values(type, numel, shift);
        fill(values, 0);
        std::vector<double> sums((numel + block - 1) / block, -1), expected(sums.size());
        grids_.next();

        math_->block_sums_of_squares(values.span(), sums);

        definition_.block_sums_of_squares(values.span(), expected);
        ASSERT_EQ(sums, expected);
      }
    }
  }
}

TEST_F(CudaShardMath, ANonFiniteElementMarksItsBlockOnly) {
  const GuardedArray values(DType::BF16, 3 * ShardMath::kNormBlock, 0);
  for (const float bad : {-INFINITY, NAN}) {
    fill(values, 0);
    test::encode(values.span(), ShardMath::kNormBlock + 12345, bad);
    std::vector<double> sums(3);

    math_->block_sums_of_squares(values.span(), sums);

    EXPECT_TRUE(std::isfinite(sums[0]) && std::isfinite(sums[2]));
    EXPECT_EQ(std::isnan(bad), std::isnan(sums[1]));
    EXPECT_FALSE(std::isfinite(sums[1]));
  }
}

TEST_F(CudaShardMath, MessagesAreThoseOfTheScalarLoops) {
  for (const BlockCode code : kCodes) {
    for (const DType type : kTypes) {
      for (std::size_t numel = 0; numel <= 1100; numel += numel < 40 || (numel > 500 && numel < 530) ? 1 : 11) {
        SCOPED_TRACE(std::string(code == BlockCode::Int8 ? "int8 " : "int4 ") + std::string(name_of(type)) + " x " +
                     std::to_string(numel));
        const GuardedArray values(type, numel, numel % 9), decoded(type, numel, numel % 7);
        const GuardedArray expected_decoded(type, numel, 0);
        const GuardedArray message(DType::U8, message_bytes(code, numel), numel % 4 * 4);
        const GuardedArray expected(DType::U8, message_bytes(code, numel), 0);
        const GuardedArray sum(DType::F32, numel, numel % 3), expected_sum(DType::F32, numel, 0);
        fill(values, numel % 5 == 0 ? 300 : 0);  // some blocks become NaN or hold zeros
        fill(sum, 50);
        copy(expected_sum, sum);
        grids_.next();

        math_->quantize(message.span(), values.span(), code);
        math_->dequantize(decoded.span(), message.span(), code);
        math_->dequantize_add(sum.span(), message.span(), code);

        definition_.quantize(expected.span(), values.span(), code);
        definition_.dequantize(expected_decoded.span(), expected.span(), code);
        definition_.dequantize_add(expected_sum.span(), expected.span(), code);
        ASSERT_TRUE(message.same_elements(expected));
        ASSERT_TRUE(test::same_values(decoded.span(), expected_decoded.span()));
        ASSERT_TRUE(test::same_values(sum.span(), expected_sum.span()));
        ASSERT_TRUE(message.guards_intact() && decoded.guards_intact() && sum.guards_intact());
      }
    }
  }
}

TEST_F(CudaShardMath, RefusesSizesAndTypesThatDoNotFit) {
  const GuardedArray three(DType::F32, 3, 0), five(DType::F32, 5, 0), integers(DType::I32, 3, 0);
  const GuardedArray halves(DType::F16, 5, 0), message(DType::U8, message_bytes(BlockCode::Int8, 5), 0);
  std::vector<double> no_sums;

  EXPECT_THROW(math_->cast(three.span(), five.span()), ContractViolation);
  EXPECT_THROW(math_->accumulate(three.span(), five.span()), ContractViolation);
  EXPECT_THROW(math_->cast(integers.span(), three.span()), ContractViolation);
  EXPECT_THROW(math_->sum_rows(five.span(), 2, 0), ContractViolation);
  EXPECT_THROW(math_->sum_rows(integers.span(), 3, 0), ContractViolation);
  EXPECT_THROW(math_->block_sums_of_squares(three.span(), no_sums), ContractViolation);
  EXPECT_THROW(math_->quantize(message.span(), three.span(), BlockCode::Int8), ContractViolation);
  EXPECT_THROW(math_->dequantize(five.span(), message.span(), BlockCode::Int4), ContractViolation);
  EXPECT_THROW(math_->dequantize_add(halves.span(), message.span(), BlockCode::Int8), ContractViolation);
}

TEST_F(CudaShardMath, QueuesOnTheCurrentStreamAndNothingWithoutElements) {
  const GuardedArray none(DType::F32, 0, 0), some(DType::F32, 5, 0), other(DType::BF16, 5, 0);
  int stream = 0;
  const cuda::CurrentStream scope(reinterpret_cast<cudaStream_t>(&stream));
  const int before = test::fake_runtime().launches;

  math_->cast(none.span(), none.span());
  math_->accumulate(none.span(), none.span());
  math_->quantize({none.span().data, DType::U8, 0}, none.span(), BlockCode::Int8);
  math_->dequantize(none.span(), {none.span().data, DType::U8, 0}, BlockCode::Int4);
  math_->block_sums_of_squares(none.span(), {});
  math_->sum_rows(none.span(), 3, 1);
  EXPECT_EQ(test::fake_runtime().launches, before);

  math_->cast(some.span(), other.span());
  EXPECT_EQ(test::fake_runtime().launches, before + 1);
  EXPECT_EQ(test::fake_runtime().last_stream, &stream);
}

TEST_F(CudaShardMath, ReportsWhatTheStreamSaysWhenItWaitsForTheSums) {
  const GuardedArray values(DType::F32, 5, 0);
  std::vector<double> sums(1);
  test::fake_runtime().synchronize_error = cudaErrorLaunchFailure;

  try {
    math_->block_sums_of_squares(values.span(), sums);
    ADD_FAILURE() << "no error";
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(),
                 "cudaStreamSynchronize failed: cudaErrorLaunchFailure, unspecified launch failure; nothing can run on "
                 "this GPU until the program is started again");
  }
  test::fake_runtime().synchronize_error = cudaSuccess;
}

TEST(CudaShardMathMemory, IsUnpinnedAtTheEnd) {
  const int before = test::fake_runtime().pinned_allocations;

  cuda::DeviceContext context(0);
  auto math = cuda::make_cuda_shard_math(context);
  EXPECT_EQ(test::fake_runtime().pinned_allocations, before + 1);
  math.reset();

  EXPECT_EQ(test::fake_runtime().pinned_allocations, before);
}

// Arrays that begin so far before `element` that it is their last of kFar.
constexpr std::int64_t kFar = (std::int64_t{1} << 33) + 5;
template <typename T>
T* start_of(T* last, std::int64_t numel = kFar) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(last) - sizeof(T) * static_cast<std::size_t>(numel - 1));
}

TEST(ConvertBody, ReachesElementsBehind32Bits) {
  alignas(16) float sum[12] = {}, addend[12] = {};
  sum[8] = 1;
  addend[8] = 2;
  const ConvertBody<Accumulate, encoding::F32, encoding::F32> body(start_of(sum + 8), start_of(addend + 8), kFar);

  body(body.shape.groups - 1, body.shape.groups);

  EXPECT_EQ(sum[8], 3);
  EXPECT_EQ(sum[9], 0);
}

TEST(SumRowsBody, ReachesElementsBehind32Bits) {
  constexpr std::int64_t kRow = (std::int64_t{1} << 31) + 8;
  constexpr std::size_t kBytes = 2 * kRow * sizeof(std::uint16_t);
  // Pages that nobody touches take no memory.
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const values = static_cast<std::uint16_t*>(memory);
  values[kRow - 1] = 0x3f80;      // 1
  values[2 * kRow - 1] = 0x4000;  // 2
  const SumRowsBody<encoding::Bf16> body(values, kRow, 2, 1);

  body(body.shape.groups - 1, body.shape.groups);

  EXPECT_EQ(values[kRow - 1], 0x3f80);
  EXPECT_EQ(values[2 * kRow - 1], 0x4040);  // 3
  EXPECT_EQ(values[2 * kRow - 9], 0);
  munmap(memory, kBytes);
}

TEST(SumLanesBody, ReachesElementsBehind32Bits) {
  float values[16] = {};
  double lanes[16] = {};
  for (int i = 0; i < 5; ++i) values[i] = static_cast<float>(i + 1);
  using Body = SumLanesBody<encoding::F32>;
  const std::int64_t items = Body(nullptr, nullptr, kFar).items();
  // The last block holds five elements; its lanes end where those of all blocks do.
  const Body body(start_of(values + 4), start_of(lanes + 15, items * Body::kGroup), kFar);

  for (std::int64_t item = items - Body::kParts; item < items; ++item) body(item, items);

  EXPECT_EQ(items, ((std::int64_t{1} << 17) + 1) * 4);
  EXPECT_EQ(lanes[4], 25);
  EXPECT_EQ(lanes[0], 1);
  EXPECT_EQ(lanes[5], 0);
}

TEST(QuantizeBody, ReachesElementsBehind32Bits) {
  using Body = QuantizeBody<BlockCode::Int8, encoding::F32>;
  float values[16] = {1, -2, 3, -4, 5};
  std::uint8_t codes[16] = {};
  float scale = 0;
  Body body(nullptr, start_of(values + 4), kFar);
  const std::int64_t last = body.blocks() - 1;
  body.message.codes = start_of(codes + 4);
  body.message.scales = start_of(&scale, last + 1);

  run_block(body, last);

  EXPECT_EQ(scale, 5);
  EXPECT_EQ(codes[4], 127);
  EXPECT_EQ(codes[1], static_cast<std::uint8_t>(-51));
  EXPECT_EQ(codes[8], 0);
}

TEST(ShardMathEntryPoints, RefuseTypesAndCodesThatDoNotExist) {
  float value = 0;
  double lanes[16];
  EXPECT_EQ(strata_cuda_cast(&value, 3, &value, 0, 1, nullptr), kInvalidValue);
  EXPECT_EQ(strata_cuda_accumulate(&value, 0, &value, -1, 1, nullptr), kInvalidValue);
  EXPECT_EQ(strata_cuda_sum_rows(&value, 3, 1, 1, 0, nullptr), kInvalidValue);
  EXPECT_EQ(strata_cuda_sum_lanes(lanes, &value, 3, 1, nullptr), kInvalidValue);
  EXPECT_EQ(strata_cuda_quantize(&value, &value, 0, 1, 2, nullptr), kInvalidValue);
  EXPECT_EQ(strata_cuda_dequantize(&value, 4, &value, 1, 0, nullptr), kInvalidValue);
  EXPECT_EQ(strata_cuda_dequantize_add(&value, &value, 1, -1, nullptr), kInvalidValue);
}

}  // namespace
}  // namespace strata::kernels
