// Loops over contiguous elements that need no optimizer, one table of them per instruction set. Single-threaded;
// CpuShardMath splits the work.
#pragma once

#include <array>
#include <cstddef>

#include "core/dtype.h"
#include "core/encodings.h"
#include "cpu_adam/isa.h"

namespace strata::cpu_adam {

using encoding::Bf16;
using encoding::F16;
using encoding::F32;

// Number of types that parameters and gradients may have.
inline constexpr std::size_t kEncodings = 3;

template <typename Encoding>
const typename Encoding::Stored* stored_as(const std::byte* data) {
  return reinterpret_cast<const typename Encoding::Stored*>(data);
}

template <typename Encoding>
typename Encoding::Stored* stored_as(std::byte* data) {
  return reinterpret_cast<typename Encoding::Stored*>(data);
}

// Every function touches exactly numel elements of each array, not a byte around them. Pointers are aligned to their
// element type and no further.
struct ShardKernels {
  using Convert = void (*)(std::byte* destination, const std::byte* source, std::size_t numel);
  using SumOfSquares = double (*)(const std::byte* values, std::size_t numel);
  template <typename Function>
  using Table = std::array<std::array<Function, kEncodings>, kEncodings>;

  Table<Convert> cast = {};        // [destination type][source type]
  Table<Convert> accumulate = {};  // [destination type][source type]
  std::array<SumOfSquares, kEncodings> sum_of_squares = {};
};

// Requires: can_run(isa).
const ShardKernels& shard_kernels(Isa isa);

// Null where `isa` is not a vector unit that this processor can run.
const ShardKernels* simd_shard_kernels(Isa isa);

}  // namespace strata::cpu_adam
