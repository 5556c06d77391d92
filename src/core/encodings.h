// How an fp32 value is stored: the three element types as tags, so that one template serves every combination.
// C++17, because CUDA sources include it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/numeric.h"

namespace strata::encoding {

struct F32 {
  using Stored = float;
  static constexpr std::size_t kIndex = 0;  // position in tables of functions by type
  STRATA_HOST_DEVICE static float decode(Stored stored) { return stored; }
  STRATA_HOST_DEVICE static Stored encode(float value) { return value; }
};

struct Bf16 {
  using Stored = std::uint16_t;
  static constexpr std::size_t kIndex = 1;
  STRATA_HOST_DEVICE static float decode(Stored stored) { return bf16_to_float(stored); }
  STRATA_HOST_DEVICE static Stored encode(float value) { return float_to_bf16(value); }
};

struct F16 {
  using Stored = std::uint16_t;
  static constexpr std::size_t kIndex = 2;
  STRATA_HOST_DEVICE static float decode(Stored stored) { return half_to_float(stored); }
  STRATA_HOST_DEVICE static Stored encode(float value) { return float_to_half(value); }
};

}  // namespace strata::encoding
