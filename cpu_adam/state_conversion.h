// Between the encodings of optimizer states, for a run that goes on with another one than its checkpoint has.
#pragma once

#include <span>

#include "core/optimizer_config.h"
#include "core/parallel.h"

namespace strata::cpu_adam {

// All spans lie in host memory and return written. Throws: ContractViolation when types or sizes do not fit.

// The fp32 master of a bf16 parameter and its remainder, and back; exact both ways (a NaN may change its payload).
void join_master(Parallel& parallel, TensorSpan master, TensorSpan param, TensorSpan remainder);
void split_master(Parallel& parallel, TensorSpan param, TensorSpan remainder, TensorSpan master);

// A moment as fp32. `stored` is what state_specs lists for it: one span of F32 or BF16, or U8 codes and their scales.
void decode_moment(Parallel& parallel, MomentRange range, TensorSpan values, std::span<const TensorSpan> stored);
// The same moment from fp32 values. BF16 is rounded to nearest, ties away from zero: there is no step to take random
// numbers from. Blocks are counted from the start of the spans.
void encode_moment(Parallel& parallel, MomentRange range, std::span<const TensorSpan> stored, TensorSpan values);

}  // namespace strata::cpu_adam
