// What arrays of a shard hold in a measurement: ordinary values, so that none runs on subnormals.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/buffer.h"
#include "core/numeric.h"

namespace strata::bench {

// Elements [begin, end) of an array of bf16 weights or gradients, with a pattern of `period` elements.
inline void fill_bf16(const TensorSpan& array, std::size_t period, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    array.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(0x3c00 + i % period);
  }
}
inline constexpr std::size_t kParamPeriod = 307;
inline constexpr std::size_t kGradPeriod = 509;

// Values [begin, end) of an array of optimizer states of any encoding.
inline void fill_state(const TensorSpan& array, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    const float value = 1e-3f * static_cast<float>(1 + i % 977);
    if (array.dtype == DType::F32) array.as<float>()[i] = value;
    if (array.dtype == DType::U16) array.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(i * 40503);
    if (array.dtype == DType::BF16) array.as<std::uint16_t>()[i] = float_to_bf16(value);
    if (array.dtype == DType::U8) array.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(1 + i % 127);
  }
}

}  // namespace strata::bench
