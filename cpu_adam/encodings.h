// How an fp32 value is stored: the three element types as tags, so that one template serves every combination.
// kIndex is encoding_index() of the type (shard_kernels.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/numeric.h"

namespace strata::cpu_adam {

struct F32 {
  using Stored = float;
  static constexpr std::size_t kIndex = 0;
  static float decode(Stored stored) { return stored; }
  static Stored encode(float value) { return value; }
};

struct Bf16 {
  using Stored = std::uint16_t;
  static constexpr std::size_t kIndex = 1;
  static float decode(Stored stored) { return bf16_to_float(stored); }
  static Stored encode(float value) { return float_to_bf16(value); }
};

struct F16 {
  using Stored = std::uint16_t;
  static constexpr std::size_t kIndex = 2;
  static float decode(Stored stored) { return half_to_float(stored); }
  static Stored encode(float value) { return float_to_half(value); }
};

template <typename Encoding>
const typename Encoding::Stored* stored_as(const std::byte* data) {
  return reinterpret_cast<const typename Encoding::Stored*>(data);
}

template <typename Encoding>
typename Encoding::Stored* stored_as(std::byte* data) {
  return reinterpret_cast<typename Encoding::Stored*>(data);
}

}  // namespace strata::cpu_adam
