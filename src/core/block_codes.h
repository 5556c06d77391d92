// Tensors as messages of fewer bytes: definitions for one element and for the layout, which every kernel and device
// follows. docs/numerics.md has the bounds. C++17, because CUDA sources include it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/state_encodings.h"

namespace strata {

// [Note: block codes] Integers of 8 or 4 bits in blocks of kScaleBlock elements, for what travels between ranks: the
// block quantization of Wang et al., "ZeRO++", 2023 (arXiv:2306.10209), symmetric. A block's scale is its largest
// magnitude, in fp32; an element is the nearest of the multiples -127..127 (-7..7) of scale / 127 (/ 7), ties to the
// even one. So an element is off by at most scale / 254 (/ 14), zero and the largest magnitude come back exactly, and
// coding once more what was decoded changes nothing, in 16-bit types too. A block that holds a NaN or an infinity
// becomes NaN as a whole, so that an overflow stays visible; one whose largest magnitude is below 2^-126 becomes zero.
enum class BlockCode : std::uint8_t { Int8, Int4 };
inline constexpr std::size_t kBlockCodes = 2;

// A message of `numel` elements is one run of bytes: the codes (of Int4 two in a byte, the earlier element in the low
// half), zeros up to a multiple of 4 bytes, then one fp32 scale per block, the last of which may be short.
STRATA_HOST_DEVICE constexpr std::size_t code_bytes(BlockCode code, std::size_t numel) {
  return code == BlockCode::Int8 ? numel : numel / 2 + numel % 2;
}
STRATA_HOST_DEVICE constexpr std::size_t scales_offset(BlockCode code, std::size_t numel) {
  return (code_bytes(code, numel) + 3) / 4 * 4;
}
STRATA_HOST_DEVICE constexpr std::size_t message_bytes(BlockCode code, std::size_t numel) {
  return scales_offset(code, numel) + (numel + kScaleBlock - 1) / kScaleBlock * sizeof(float);
}

STRATA_HOST_DEVICE constexpr float largest_code(BlockCode code) {
  return code == BlockCode::Int8 ? 127.0f : 7.0f;
}
// One code step as a share of the scale.
STRATA_HOST_DEVICE constexpr float code_step(BlockCode code) {
  return 1.0f / largest_code(code);
}
static_assert(largest_code(BlockCode::Int8) * code_step(BlockCode::Int8) == 1);
static_assert(largest_code(BlockCode::Int4) * code_step(BlockCode::Int4) == 1);

// `inverse_scale` is that of block_scale() over the block, whose `stored` is the block's scale; `largest` and `step`
// are largest_code() and code_step().
STRATA_HOST_DEVICE inline std::int32_t encode_in_block(float value, float inverse_scale, float largest) {
  if (inverse_scale == 0) return 0;
  const float sum = exact_fma(exact_mul(value, inverse_scale), largest, kRounder);
  return static_cast<std::int32_t>(float_bits(sum) - float_bits(kRounder));
}

STRATA_HOST_DEVICE inline float decode_in_block(std::int32_t code, float scale, float step) {
  return exact_mul(exact_mul(static_cast<float>(code), step), scale);
}

// Int4: two codes in a byte and back.
STRATA_HOST_DEVICE inline std::uint8_t pack_codes(std::int32_t low, std::int32_t high) {
  return static_cast<std::uint8_t>((low & 15) | (high & 15) << 4);
}
STRATA_HOST_DEVICE inline std::int32_t low_code(std::uint8_t packed) {
  return ((packed & 15) ^ 8) - 8;
}
STRATA_HOST_DEVICE inline std::int32_t high_code(std::uint8_t packed) {
  return ((packed >> 4) ^ 8) - 8;
}

}  // namespace strata
