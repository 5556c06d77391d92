#include "cpu_adam/cpu_shard_math.h"

#include <algorithm>
#include <string>

#include "core/bytes.h"
#include "core/error.h"
#include "cpu_adam/shard_kernels.h"

namespace strata::cpu_adam {
namespace {

constexpr std::size_t kGrain = 65536;

void convert(Parallel& parallel, const ShardKernels::Table<ShardKernels::Convert>& table, TensorSpan destination,
             TensorSpan source) {
  STRATA_EXPECTS(destination.numel == source.numel, "destination has " + std::to_string(destination.numel) +
                                                        " elements, source has " + std::to_string(source.numel));
  const auto function = table[encoding_index(destination.dtype)][encoding_index(source.dtype)];
  parallel.parallel_for(source.numel, kGrain, [&](std::size_t begin, std::size_t end) {
    function(destination.subspan(begin, end - begin).data, source.subspan(begin, end - begin).data, end - begin);
  });
}

}  // namespace

CpuShardMath::CpuShardMath(Parallel& parallel, Isa isa)
    : parallel_(parallel), isa_(resolve_isa(isa)), kernels_(shard_kernels(isa_)) {}

void CpuShardMath::cast(TensorSpan destination, TensorSpan source) {
  convert(parallel_, kernels_.cast, destination, source);
}

void CpuShardMath::accumulate(TensorSpan destination, TensorSpan source) {
  convert(parallel_, kernels_.accumulate, destination, source);
}

void CpuShardMath::block_sums_of_squares(TensorSpan values, std::span<double> sums) {
  STRATA_EXPECTS(sums.size() == ceil_div(values.numel, kNormBlock),
                 std::to_string(values.numel) + " elements need ceil(numel / kNormBlock) sums, got " +
                     std::to_string(sums.size()));
  const auto sum_of_squares = kernels_.sum_of_squares[encoding_index(values.dtype)];
  parallel_.parallel_for(sums.size(), 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t block = begin; block < end; ++block) {
      const std::size_t first = block * kNormBlock;
      const TensorSpan part = values.subspan(first, std::min(kNormBlock, values.numel - first));
      sums[block] = sum_of_squares(part.data, part.numel);
    }
  });
}

}  // namespace strata::cpu_adam
