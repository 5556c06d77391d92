// The definition of every loop in shard_kernels.h, one element at a time. The vector code must equal it bit for bit and
// calls it for the elements that do not fill a vector.
#pragma once

#include <array>
#include <cstddef>

#include "cpu_adam/shard_kernels.h"

namespace strata::cpu_adam::scalar {

// No templates here: an inline copy made in a file that is also compiled for AVX-512 could be the one the linker keeps.
const ShardKernels& kernels();

// [Note: norm order] Element i of a block is squared in double (exact) and added to lane i mod kSumLanes; the lanes are
// folded by halves. The order depends on nothing else: not on the ISA, the threads, or how the block is reached.
inline constexpr std::size_t kSumLanes = 16;
using SumLanes = std::array<double, kSumLanes>;

// Adds values[first, numel) of the type with index `encoding` to their lanes.
// Requires: values[0, first) are in the lanes already.
void add_squares(SumLanes& lanes, std::size_t encoding, const std::byte* values, std::size_t first, std::size_t numel);

double fold(SumLanes lanes);

}  // namespace strata::cpu_adam::scalar
