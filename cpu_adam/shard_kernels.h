// The loops over contiguous elements, one table of them per instruction set. Single-threaded; the classes above split
// work.
#pragma once

#include <array>
#include <cstddef>

#include "core/adam_math.h"
#include "core/dtype.h"
#include "core/encodings.h"
#include "cpu_adam/isa.h"

namespace strata::cpu_adam {

using encoding::Bf16;
using encoding::F16;
using encoding::F32;

// Consecutive elements of one shard that are treated alike. Pointers are aligned to their element type and no further.
struct AdamRun {
  std::byte* param = nullptr;  // 16-bit: written. fp32 parameters are `master` and this is not used
  const std::byte* grad = nullptr;
  float* master = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  std::size_t numel = 0;
  float decay_factor = 1;
};

// Number of types that parameters and gradients may have.
inline constexpr std::size_t kEncodings = 3;

// Index of a type in the tables below, kIndex of its encoding. Throws: ContractViolation for anything but F32, BF16,
// F16.
std::size_t encoding_index(DType dtype);

template <typename Encoding>
const typename Encoding::Stored* stored_as(const std::byte* data) {
  return reinterpret_cast<const typename Encoding::Stored*>(data);
}

template <typename Encoding>
typename Encoding::Stored* stored_as(std::byte* data) {
  return reinterpret_cast<typename Encoding::Stored*>(data);
}

// Every function touches exactly numel elements of each array, not a byte around them.
struct ShardKernels {
  using Adam = void (*)(const AdamConstants& constants, const AdamRun& run);
  using Convert = void (*)(std::byte* destination, const std::byte* source, std::size_t numel);
  using SumOfSquares = double (*)(const std::byte* values, std::size_t numel);
  template <typename Function>
  using Table = std::array<std::array<Function, kEncodings>, kEncodings>;

  Isa isa = Isa::Scalar;
  Table<Adam> adam = {};           // [parameter type][gradient type]
  Table<Convert> cast = {};        // [destination type][source type]
  Table<Convert> accumulate = {};  // [destination type][source type]
  std::array<SumOfSquares, kEncodings> sum_of_squares = {};
};

// Requires: `isa` is one of usable_isas().
const ShardKernels& kernels_for(Isa isa);

// Null where `isa` is not compiled in or this processor cannot run it.
const ShardKernels* simd_kernels(Isa isa);

}  // namespace strata::cpu_adam
