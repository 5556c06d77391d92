// Values that arithmetic treats specially, and the comparison that results need where some are NaN.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>

#include "support/optimizer_shard.h"

namespace strata::test {

// Zeros, denormals, limits of the types, infinities, NaN.
inline float special_value(std::mt19937_64& random) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kSpecial[] = {0.0f,
                                -0.0f,
                                1e-45f,
                                -1e-40f,
                                0x1p-126f,
                                6e-8f,
                                -65520.0f,
                                std::numeric_limits<float>::max(),
                                kInfinity,
                                -kInfinity,
                                std::numeric_limits<float>::quiet_NaN(),
                                -1.0f};
  return kSpecial[random() % std::size(kSpecial)];
}

inline bool is_float(DType dtype) {
  return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16;
}

// Equal bytes, or both NaN, whose sign and payload are not promised (docs/numerics.md, 2).
inline ::testing::AssertionResult same_values(TensorSpan a, TensorSpan b) {
  const std::size_t bytes = bytes_of(a.dtype);
  for (std::size_t i = 0; i < a.numel; ++i) {
    if (std::memcmp(a.data + i * bytes, b.data + i * bytes, bytes) == 0) continue;
    if (is_float(a.dtype) && std::isnan(decoded(a, i)) && std::isnan(decoded(b, i))) continue;
    return ::testing::AssertionFailure() << "element " << i << " of " << name_of(a.dtype);
  }
  return ::testing::AssertionSuccess();
}

}  // namespace strata::test
