// The loops of [Note: block codes] over one block, one table of them per instruction set. Single-threaded; CpuShardMath
// splits the work.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/block_codes.h"
#include "cpu_adam/shard_kernels.h"

namespace strata::cpu_adam {

// Requires: numel <= kScaleBlock. Every function touches exactly numel elements and code_bytes(numel) bytes of codes,
// not a byte around them. Values are aligned to their element type and no further.
struct BlockKernels {
  // Returns the block's scale. Half a byte that holds no element is zero.
  using Encode = float (*)(const std::byte* values, std::uint8_t* codes, std::size_t numel);
  using Decode = void (*)(const std::uint8_t* codes, float scale, std::byte* values, std::size_t numel);

  std::array<std::array<Encode, kEncodings>, kBlockCodes> encode = {};  // [BlockCode][type of the values]
  std::array<std::array<Decode, kEncodings>, kBlockCodes> decode = {};
  std::array<Decode, kBlockCodes> decode_add = {};  // onto fp32
};

// Requires: can_run(isa).
const BlockKernels& block_kernels(Isa isa);

// Null where `isa` is not a vector unit that this processor can run.
const BlockKernels* simd_block_kernels(Isa isa);

namespace scalar {
// The definition, one element at a time. The vector code must equal it bit for bit.
const BlockKernels& block_kernels();
}  // namespace scalar

}  // namespace strata::cpu_adam
