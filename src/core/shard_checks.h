// What every implementation of ShardOptimizer and ShardMath checks before it touches memory. All throw
// ContractViolation.
#pragma once

#include <cstddef>
#include <span>

#include "core/shard_optimizer.h"

namespace strata {

// Whether the context makes sense and the views are those of `states`: sizes, types, segments, the grid of blocks.
void check_step(const StepContext& context, const ShardViews& views, std::span<const StateSpec> states);

// Of ShardMath: two runs of one length, rows, room for the sums, a message of its size.
void check_same_numel(TensorSpan destination, TensorSpan source);
// Rows of equal size, one of which gets the sum.
void check_rows(TensorSpan rows, std::size_t count, std::size_t into);
void check_sums(TensorSpan values, std::span<const double> sums);
void check_message(TensorSpan message, TensorSpan values, BlockCode code);
// dequantize_add() adds in fp32.
void check_sum_type(TensorSpan sum);

}  // namespace strata
