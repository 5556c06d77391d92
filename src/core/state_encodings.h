// How optimizer states are stored in less than fp32: definitions for one element, which every kernel and device
// follows. docs/numerics.md has the tables and the reasons. C++17, because CUDA sources include it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/numeric.h"

namespace strata {

// [Note: remainder] A bf16 parameter and the low 16 bits of its fp32 master. Rounding away from zero adds 0x8000 to the
// bits and cuts, so the remainder, read as a signed number, is what the parameter lacks: the pair is the master, bit
// for bit. A NaN stays a NaN of its sign.
STRATA_HOST_DEVICE inline std::uint16_t remainder_of(float master) {
  return static_cast<std::uint16_t>(float_bits(master) & 0xffffu);
}

STRATA_HOST_DEVICE inline float master_of(std::uint16_t param, std::uint16_t remainder) {
  const std::uint32_t lacking = remainder < 0x8000u ? remainder : remainder - 0x10000u;
  return float_from_bits((static_cast<std::uint32_t>(param) << 16) + lacking);
}

// [Note: random words] Stochastic rounding takes 16 random bits per value from a counter, so they depend on seed, step
// and the element's index in the model alone: not on placement, thread, rank or instruction set. A word serves one
// element: its low half the first moment, its high half the second.
// mix_bits is lowbias32 of C. Wellons's hash prospector (github.com/skeeto/hash-prospector, measured avalanche bias
// 0.17). It is a bijection, as is xor with a key: over the 2^32 indices of one key every word occurs once, so rounding
// is unbiased exactly and not only on average. Two rounds with a key before each, so that the words of two steps are no
// reordering of each other.
struct RandomKey {
  std::uint32_t first = 0;
  std::uint32_t second = 0;
};

STRATA_HOST_DEVICE inline std::uint32_t mix_bits(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x;
}

// SplitMix64's increment and finalizer (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014)
// over the three in turn.
// `index_high` is the upper half of the element's index.
STRATA_HOST_DEVICE inline RandomKey random_key(std::uint64_t seed, std::uint64_t step, std::uint32_t index_high) {
  const std::uint64_t parts[] = {seed, step, index_high};
  std::uint64_t state = 0;
  for (const std::uint64_t part : parts) {
    state = (state ^ part) + 0x9e3779b97f4a7c15u;
    state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
    state = (state ^ (state >> 27)) * 0x94d049bb133111ebu;
    state ^= state >> 31;
  }
  return {static_cast<std::uint32_t>(state), static_cast<std::uint32_t>(state >> 32)};
}

STRATA_HOST_DEVICE inline std::uint32_t random_word(RandomKey key, std::uint32_t index_low) {
  return mix_bits(mix_bits(index_low ^ key.first) ^ key.second);
}

// Rounds away from zero with the probability that makes the expected value exact. `random` is below 2^16.
// A value above the largest bf16 becomes infinity or the largest. NaN stays NaN.
STRATA_HOST_DEVICE inline std::uint16_t float_to_bf16_stochastic(float value, std::uint32_t random) {
  const std::uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + random) >> 16);
}

// [Note: 8-bit codes] The dynamic tree code of Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", 2016,
// in blocks as in Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2022: a value is scale times a table
// entry, scale is the block's largest magnitude. Decade i = 0..6 holds magnitudes from 10^(i-7) to 10^(i-6), cut into
// 2^i equal intervals (2^(i+1) in the table without signs), each represented by its middle; 0 and 1 complete the table.
// The nearest entry is taken.
//
// A code byte is the entry's rank among the sorted entries, counted from zero's; for the table with signs it is the
// negative of that, because ranks reach from -127 to 128 and a byte from -128 to 127. So byte 0 is zero in both, and
// zeroed memory is a zeroed state.
//
// Differences from the published optimizers: blocks of 256, on the grid of the flat shard instead of one per tensor; a
// second moment that is not zero never becomes zero (else the next step divides by epsilon); blocks whose largest
// magnitude is below 2^-126 become zero; a block that holds a NaN or an infinity becomes NaN.
//
// Instead of a search in the table, an entry is computed. Within a decade entries lie on a line, and the decade is the
// exponent of a number made from the rank: 2 * rank with signs, rank + 1 without. Fused multiply-adds of fp32
// constants, so the same on every device.
inline constexpr std::size_t kScaleBlock = 256;
inline constexpr std::size_t kDecades = 8;  // seven, and one for the entry 1

// Per decade. decode: entry = fma(number, slope, start). encode: rank = fma(value, scale, offset), at most `last`,
// rounded to nearest; `next` is where the next decade begins, the middle between its first entry and the last of this
// one.
struct DynamicTable {
  float slope[kDecades] = {};
  float start[kDecades] = {};
  float next[kDecades] = {};
  float scale[kDecades] = {};
  float offset[kDecades] = {};
  float last[kDecades] = {};
};

constexpr DynamicTable make_dynamic_table(bool with_signs) {
  DynamicTable table;
  const double per_rank = with_signs ? 2 : 1;  // number per rank
  const double shift = with_signs ? 0 : 1;     // rank + shift = intervals of the decade + interval
  double top = 1e-6;                           // of the decade
  double intervals = with_signs ? 1 : 2;       // in it
  for (std::size_t i = 0; i + 1 < kDecades; ++i) {
    const double last_entry = top * (1.0 - 0.45 / intervals);
    const double next_entry = i + 2 == kDecades ? 1.0 : top * (1.0 + 2.25 / intervals);
    table.slope[i] = static_cast<float>(0.9 * top / intervals / per_rank);
    table.start[i] = static_cast<float>(top * (0.45 / intervals - 0.8));
    table.next[i] = static_cast<float>((last_entry + next_entry) / 2);
    table.scale[i] = static_cast<float>(intervals / (0.9 * top));
    table.offset[i] = static_cast<float>(intervals * 8.0 / 9.0 - shift - 0.5);
    table.last[i] = static_cast<float>(2 * intervals - 1 - shift);
    top *= 10;
    intervals *= 2;
  }
  // encode: decade 0 also decides between zero and its first entry: the line through the middle of those two, where the
  // rank becomes 1, and, with two entries, through the middle between them, where it becomes 2.
  const double zero_to_one = with_signs ? 0.275e-6 : 0.1625e-6;
  table.scale[0] = static_cast<float>(with_signs ? 1 / zero_to_one : 1 / (0.55e-6 - zero_to_one));
  table.offset[0] = static_cast<float>(with_signs ? -0.5 : 0.5 - zero_to_one / (0.55e-6 - zero_to_one));
  table.next[kDecades - 1] = 2;  // never reached
  table.scale[kDecades - 1] = 0;
  table.offset[kDecades - 1] = table.last[kDecades - 1] = static_cast<float>(intervals - shift);
  // decode: exponents count modulo 8. With signs the number 0 shares decade 0 with its only entry, the number 2, and
  // 256 is alone; without signs the numbers 1 (zero) and 256 (one) share the last.
  if (with_signs) {
    table.slope[0] = static_cast<float>(0.275e-6);
    table.start[0] = -0.0f;  // its negative is used
    table.slope[kDecades - 1] = 0x1p-8f;
  } else {
    table.slope[kDecades - 1] = static_cast<float>(1.0 / 255);
    table.start[kDecades - 1] = -table.slope[kDecades - 1];
  }
  return table;
}

inline constexpr DynamicTable kSignedTable = make_dynamic_table(true);
inline constexpr DynamicTable kNotNegativeTable = make_dynamic_table(false);

#if defined(__CUDACC__)
// In the device's memory, through its first-level cache: one decade's entries of all lanes lie in one line there,
// whereas the constant bank takes the lanes of different decades in turn.
static __device__ const DynamicTable kSignedTableOnDevice = make_dynamic_table(true);
static __device__ const DynamicTable kNotNegativeTableOnDevice = make_dynamic_table(false);
#endif

STRATA_HOST_DEVICE inline const DynamicTable& signed_table() {
#if defined(__CUDA_ARCH__)
  return kSignedTableOnDevice;
#else
  return kSignedTable;
#endif
}

STRATA_HOST_DEVICE inline const DynamicTable& not_negative_table() {
#if defined(__CUDA_ARCH__)
  return kNotNegativeTableOnDevice;
#else
  return kNotNegativeTable;
#endif
}

// The factor that takes a block's values into [0, 1], and what is stored as its scale. `largest_bits` are the bits of
// its largest magnitude, compared as integers, so that a NaN counts as larger than everything.
struct BlockScale {
  float stored = 0;
  float inverse = 0;  // 0: every code is 0
};

STRATA_HOST_DEVICE inline BlockScale block_scale(std::uint32_t largest_bits) {
  if (largest_bits >= 0x7f800000u) return {float_from_bits(0x7fc00000u), 0};
  if (largest_bits < 0x00800000u) return {0, 0};
  return {float_from_bits(largest_bits), exact_div(1.0f, float_from_bits(largest_bits))};
}

// log10 of a number in [0, 1] from its bits, read as an integer: exponent and mantissa are a piecewise linear log2, at
// most 0.026 decades too small. Less 0.3, which is more than the ends of decades stick out, plus 7: never a decade too
// large and at most one too small, so one comparison settles it. Half less, because kRounder rounds to nearest.
inline constexpr float kDecadesPerBit = 3.5885572e-8f;  // log10(2) / 2^23
inline constexpr float kDecadeOfZero = -32.030809f;     // 6.2 - 127 log10(2)

// Added to a number below 2^22 it leaves the nearest integer (ties to even) in the low bits of the sum, modulo 2^22.
inline constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23

// The rank of the entry nearest to `value`, in [0, 1] but for rounding, before it is rounded to an integer. Ties and
// the last bit of interval boundaries follow the arithmetic.
STRATA_HOST_DEVICE inline float dynamic_rank(const DynamicTable& table, float value) {
  const float estimate =
      exact_fma(static_cast<float>(static_cast<std::int32_t>(float_bits(value))), kDecadesPerBit, kDecadeOfZero);
  std::uint32_t decade = float_bits((estimate > 0 ? estimate : 0.0f) + kRounder) & 7u;
  if (value >= table.next[decade]) ++decade;
  const float rank = exact_fma(value, table.scale[decade], table.offset[decade]);
  return rank < table.last[decade] ? rank : table.last[decade];
}

// Where a number's decade is in the table.
STRATA_HOST_DEVICE inline std::uint32_t decade_of(float number) {
  return float_bits(number) >> 23 & 7u;
}

// Codes of first moments. There is no entry -1, so -1 becomes the entry before it, of rank -127.
STRATA_HOST_DEVICE inline std::uint8_t encode_signed(float value, float inverse_scale) {
  if (inverse_scale == 0) return 0;
  const std::uint32_t sign = float_bits(value) & 0x80000000u;
  const float magnitude = float_from_bits(float_bits(value) ^ sign);
  const float rank = dynamic_rank(signed_table(), exact_mul(magnitude, inverse_scale));
  const float code = float_from_bits(float_bits(rank) ^ sign ^ 0x80000000u);
  return static_cast<std::uint8_t>(float_bits((code < 127.0f ? code : 127.0f) + kRounder));
}

STRATA_HOST_DEVICE inline float decode_signed(std::uint8_t code, float scale) {
  const float number = 2.0f * static_cast<float>(static_cast<std::int8_t>(code));  // of minus the value
  const std::uint32_t decade = decade_of(number);
  const float start = float_from_bits(float_bits(-signed_table().start[decade]) ^ (float_bits(number) & 0x80000000u));
  return exact_mul(exact_fma(-number, signed_table().slope[decade], start), scale);
}

// Codes of second moments, which are never negative: their sign is not looked at.
STRATA_HOST_DEVICE inline std::uint8_t encode_not_negative(float value, float inverse_scale) {
  const float magnitude = float_from_bits(float_bits(value) & 0x7fffffffu);
  if (inverse_scale == 0 || magnitude == 0) return 0;
  const float rank = dynamic_rank(not_negative_table(), exact_mul(magnitude, inverse_scale));
  return static_cast<std::uint8_t>(float_bits((rank > 1.0f ? rank : 1.0f) + kRounder));
}

STRATA_HOST_DEVICE inline float decode_not_negative(std::uint8_t code, float scale) {
  const float number = static_cast<float>(code + 1);
  const std::uint32_t decade = decade_of(number);
  return exact_mul(exact_fma(number, not_negative_table().slope[decade], not_negative_table().start[decade]), scale);
}

}  // namespace strata
