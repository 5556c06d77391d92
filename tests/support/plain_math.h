// PlainMath: ShardMath as three loops, for tests of the code around it.
#pragma once

#include <algorithm>

#include "core/error.h"
#include "core/numeric.h"
#include "core/shard_optimizer.h"

namespace strata::test {

inline float load_element(const TensorSpan& span, std::size_t i) {
  if (span.dtype == DType::F32) return span.as<float>()[i];
  if (span.dtype == DType::F16) return half_to_float(span.as<std::uint16_t>()[i]);
  STRATA_EXPECTS(span.dtype == DType::BF16, "fp32, bf16 or fp16");
  return bf16_to_float(span.as<std::uint16_t>()[i]);
}

inline void store_element(const TensorSpan& span, std::size_t i, float value) {
  if (span.dtype == DType::F32) {
    span.as<float>()[i] = value;
  } else if (span.dtype == DType::F16) {
    span.as<std::uint16_t>()[i] = float_to_half(value);
  } else {
    STRATA_EXPECTS(span.dtype == DType::BF16, "fp32, bf16 or fp16");
    span.as<std::uint16_t>()[i] = float_to_bf16(value);
  }
}

// Stateless, so safe on any thread.
class PlainMath final : public ShardMath {
 public:
  void cast(TensorSpan destination, TensorSpan source) override {
    for (std::size_t i = 0; i < source.numel; ++i) store_element(destination, i, load_element(source, i));
  }
  void accumulate(TensorSpan destination, TensorSpan source) override {
    for (std::size_t i = 0; i < source.numel; ++i) {
      store_element(destination, i, load_element(destination, i) + load_element(source, i));
    }
  }
  void block_sums_of_squares(TensorSpan values, std::span<double> sums) override {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (std::size_t i = 0; i < values.numel; ++i) {
      const double value = load_element(values, i);
      sums[i / kNormBlock] += value * value;
    }
  }
};

}  // namespace strata::test
