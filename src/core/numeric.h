// Arithmetic on fp32 and conversions to the 16-bit types: the definition that every encoding, kernel and device
// follows. C++17 and free of other project headers, because CUDA sources include it.
//
// [Note: rounding] Master to 16-bit rounds to nearest, ties away from zero. With ties to even two fp32 masters share
// one (weight, 16-bit remainder) code, so the remainder encoding could not be exact; see docs/numerics.md.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define STRATA_HOST_DEVICE __host__ __device__
#else
#define STRATA_HOST_DEVICE
#endif

namespace strata {

STRATA_HOST_DEVICE inline std::uint32_t float_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

STRATA_HOST_DEVICE inline float float_from_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// One rounding each, to nearest even, on every device: see docs/numerics.md, 2.
STRATA_HOST_DEVICE inline float exact_fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

// Under -fmad=false and -ffp-contract=off the plain operators below round once each; nvcc's intrinsics say so in the
// source.
STRATA_HOST_DEVICE inline float exact_mul(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

STRATA_HOST_DEVICE inline float exact_div(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

STRATA_HOST_DEVICE inline float exact_sqrt(float a) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(a);
#else
  return std::sqrt(a);
#endif
}

STRATA_HOST_DEVICE inline float bf16_to_float(std::uint16_t bits) {
  return float_from_bits(static_cast<std::uint32_t>(bits) << 16);
}

// Nearest, ties away from zero; overflow goes to infinity; NaN stays NaN (quiet, sign and top payload bits kept).
STRATA_HOST_DEVICE inline std::uint16_t float_to_bf16(float value) {
  const std::uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  }
  return static_cast<std::uint16_t>((bits + 0x8000u) >> 16);
}

STRATA_HOST_DEVICE inline float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  std::uint32_t exponent = (half >> 10) & 0x1fu;
  std::uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0x1fu) return float_from_bits(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    if (mantissa == 0) return float_from_bits(sign);
    // A subnormal half is a normal float: shift until the hidden bit appears.
    exponent = 113;
    while ((mantissa & 0x400u) == 0) {
      mantissa <<= 1;
      --exponent;
    }
    return float_from_bits(sign | (exponent << 23) | ((mantissa & 0x3ffu) << 13));
  }
  return float_from_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// Nearest, ties away from zero; overflow goes to infinity; NaN stays NaN.
STRATA_HOST_DEVICE inline std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = float_bits(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // >= 65536, infinity included
  if (magnitude >= 0x38800000u) {                                                   // normal half: >= 2^-14
    return static_cast<std::uint16_t>(sign | ((magnitude + 0x1000u - 0x38000000u) >> 13));
  }
  if (magnitude < 0x33000000u) return static_cast<std::uint16_t>(sign);  // < 2^-25 rounds to zero
  const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const std::uint32_t shift = 126u - (magnitude >> 23);  // 14..24
  return static_cast<std::uint16_t>(sign | ((mantissa + (1u << (shift - 1))) >> shift));
}

}  // namespace strata
