#include "cpu_adam/cpu_shard_math.h"

#include <algorithm>
#include <array>

#include "core/shard_checks.h"
#include "cpu_adam/block_kernels.h"
#include "cpu_adam/shard_kernels.h"

namespace strata::cpu_adam {
namespace {

constexpr std::size_t kGrain = 65536;
constexpr std::size_t kSumChunk = 2048;  // fp32 sums that stay in the first cache

void convert(Parallel& parallel, const ShardKernels::Table<ShardKernels::Convert>& table, TensorSpan destination,
             TensorSpan source) {
  check_same_numel(destination, source);
  const auto function = table[encoding_index(destination.dtype)][encoding_index(source.dtype)];
  parallel.parallel_for(source.numel, kGrain, [&](std::size_t begin, std::size_t end) {
    function(destination.subspan(begin, end - begin).data, source.subspan(begin, end - begin).data, end - begin);
  });
}

// Where a block of a message lies.
struct CodedBlock {
  std::uint8_t* codes;
  float* scale;
};

// Calls fn(block of the message, the block's values) for each block.
template <typename Fn>
void for_each_block(Parallel& parallel, TensorSpan message, TensorSpan values, BlockCode code, Fn&& fn) {
  check_message(message, values, code);
  auto* const codes = message.as<std::uint8_t>();
  auto* const scales = reinterpret_cast<float*>(message.data + scales_offset(code, values.numel));
  parallel.parallel_for(values.numel, kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t first = begin; first < end; first += kScaleBlock) {
      fn(CodedBlock{codes + code_bytes(code, first), scales + first / kScaleBlock},
         values.subspan(first, std::min(kScaleBlock, end - first)));
    }
  });
}

}  // namespace

CpuShardMath::CpuShardMath(Parallel& parallel, Isa isa)
    : parallel_(parallel), isa_(resolve_isa(isa)), kernels_(shard_kernels(isa_)), block_kernels_(block_kernels(isa_)) {}

void CpuShardMath::cast(TensorSpan destination, TensorSpan source) {
  convert(parallel_, kernels_.cast, destination, source);
}

void CpuShardMath::accumulate(TensorSpan destination, TensorSpan source) {
  convert(parallel_, kernels_.accumulate, destination, source);
}

void CpuShardMath::sum_rows(TensorSpan rows, std::size_t count, std::size_t into) {
  check_rows(rows, count, into);
  if (count == 1) return;
  const std::size_t fp32 = encoding_index(DType::F32), type = encoding_index(rows.dtype), row = rows.numel / count;
  parallel_.parallel_for(row, kGrain, [&](std::size_t begin, std::size_t end) {
    std::array<float, kSumChunk> room;
    auto* const sum = reinterpret_cast<std::byte*>(room.data());
    for (std::size_t first = begin; first < end; first += kSumChunk) {
      const std::size_t numel = std::min(kSumChunk, end - first);
      const auto part = [&](std::size_t r) { return rows.subspan(r * row + first, numel).data; };
      kernels_.cast[fp32][type](sum, part(0), numel);
      for (std::size_t r = 1; r < count; ++r) kernels_.accumulate[fp32][type](sum, part(r), numel);
      kernels_.cast[type][fp32](part(into), sum, numel);
    }
  });
}

void CpuShardMath::block_sums_of_squares(TensorSpan values, std::span<double> sums) {
  check_sums(values, sums);
  const auto sum_of_squares = kernels_.sum_of_squares[encoding_index(values.dtype)];
  parallel_.parallel_for(sums.size(), 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t block = begin; block < end; ++block) {
      const std::size_t first = block * kNormBlock;
      const TensorSpan part = values.subspan(first, std::min(kNormBlock, values.numel - first));
      sums[block] = sum_of_squares(part.data, part.numel);
    }
  });
}

void CpuShardMath::quantize(TensorSpan message, TensorSpan values, BlockCode code) {
  const auto encode = block_kernels_.encode[static_cast<std::size_t>(code)][encoding_index(values.dtype)];
  for_each_block(parallel_, message, values, code,
                 [&](CodedBlock block, TensorSpan part) { *block.scale = encode(part.data, block.codes, part.numel); });
  const std::size_t codes = code_bytes(code, values.numel);
  std::fill(message.data + codes, message.data + scales_offset(code, values.numel), std::byte{0});
}

void CpuShardMath::dequantize(TensorSpan values, TensorSpan message, BlockCode code) {
  const auto decode = block_kernels_.decode[static_cast<std::size_t>(code)][encoding_index(values.dtype)];
  for_each_block(parallel_, message, values, code,
                 [&](CodedBlock block, TensorSpan part) { decode(block.codes, *block.scale, part.data, part.numel); });
}

void CpuShardMath::dequantize_add(TensorSpan sum, TensorSpan message, BlockCode code) {
  check_sum_type(sum);
  const auto decode_add = block_kernels_.decode_add[static_cast<std::size_t>(code)];
  for_each_block(parallel_, message, sum, code, [&](CodedBlock block, TensorSpan part) {
    decode_add(block.codes, *block.scale, part.data, part.numel);
  });
}

}  // namespace strata::cpu_adam
