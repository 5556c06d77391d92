// The sum of a reduce-scatter whose rows have been exchanged.
#pragma once

#include <cstddef>

#include "core/shard_optimizer.h"

namespace strata::comm {

// Elements of the fp32 scratch that sum_rows() wants.
inline constexpr std::size_t kSumChunk = 65536;

// `full` is [world, numel/world]; row `into` becomes the sum of all rows: added in row order, in fp32, rounded once.
// `scratch` holds kSumChunk fp32 elements where `math` works.
void sum_rows(ShardMath& math, TensorSpan full, std::size_t world, std::size_t into, TensorSpan scratch);

}  // namespace strata::comm
