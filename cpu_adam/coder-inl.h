// Vectors of the state encodings of core/state_encodings.h, compiled once per Highway target; equal to it in every bit.
#if defined(STRATA_CODER_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef STRATA_CODER_INL_H
#undef STRATA_CODER_INL_H
#else
#define STRATA_CODER_INL_H
#endif

#include <algorithm>

#include "core/state_encodings.h"
#include "cpu_adam/encodings-inl.h"
#include "cpu_adam/update_kernels.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu_adam::HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;
using Bits = hn::RebindToUnsigned<Floats>;
using Ints = hn::RebindToSigned<Floats>;
using Bytes = hn::Rebind<std::uint8_t, Floats>;
using FloatVector = hn::Vec<Floats>;
using BitsVector = hn::Vec<Bits>;
using IntVector = hn::Vec<Ints>;
constexpr std::size_t kLanes = hn::MaxLanes(Floats());

HWY_INLINE BitsVector mix_bits(BitsVector x) {
  const Bits du;
  x = hn::Xor(x, hn::ShiftRight<16>(x));
  x = hn::Mul(x, hn::Set(du, 0x7feb352du));
  x = hn::Xor(x, hn::ShiftRight<15>(x));
  x = hn::Mul(x, hn::Set(du, 0x846ca68bu));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

HWY_INLINE BitsVector random_words(BitsVector index, BitsVector first_key, BitsVector second_key) {
  return mix_bits(hn::Xor(mix_bits(hn::Xor(index, first_key)), second_key));
}

HWY_INLINE void store_rounded(FloatVector value, BitsVector random, std::uint16_t* to) {
  const Bits du;
  const Ints di;
  const auto bits = hn::BitCast(du, value);
  const auto magnitude = hn::BitCast(di, hn::And(bits, hn::Set(du, 0x7fffffffu)));
  const auto is_nan = hn::RebindMask(du, hn::Gt(magnitude, hn::Set(di, 0x7f800000)));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, random));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40u));
  const auto code = hn::BitCast(di, hn::IfThenElse(is_nan, quiet, rounded));
  hn::StoreU(hn::DemoteTo(HalfBitsTag<Floats>(), code), HalfBitsTag<Floats>(), to);
}

// A table of eight entries for lookup(): twice in a row, so that it fills a vector of 16 lanes too.
struct WideTable {
  alignas(64) float entries[16];
};
constexpr WideTable widened(const float (&entries)[kDecades], float factor = 1) {
  WideTable wide = {};
  for (std::size_t i = 0; i < 16; ++i) wide.entries[i] = factor * entries[i % kDecades];
  return wide;
}

// The entry at index modulo 8.
HWY_INLINE FloatVector lookup(const WideTable& table, IntVector index) {
  const Floats d;
  const Ints di;
  if constexpr (kLanes >= kDecades) {
    // The permutations of AVX2 and AVX-512 look at the low 3 or 4 bits only; Highway's debug build insists on less.
    if constexpr (HWY_IS_DEBUG_BUILD) index = hn::And(index, hn::Set(di, 7));
    return hn::TableLookupLanes(hn::Load(d, table.entries), hn::IndicesFromVec(d, index));
  } else {
    const auto place = hn::IndicesFromVec(d, hn::And(index, hn::Set(di, 3)));
    const auto low = hn::TableLookupLanes(hn::Load(d, table.entries), place);
    const auto high = hn::TableLookupLanes(hn::Load(d, table.entries + 4), place);
    const auto is_high = hn::TestBit(index, hn::Set(di, 4));
    return hn::IfThenElse(hn::RebindMask(d, is_high), high, low);
  }
}

// One of the two tables of core/state_encodings.h.
template <bool kSigned>
struct Coder {
  static constexpr DynamicTable kTable = kSigned ? kSignedTable : kNotNegativeTable;
  static constexpr WideTable kSlope = widened(kTable.slope);
  static constexpr WideTable kStart = widened(kTable.start, kSigned ? -1.0f : 1.0f);
  static constexpr WideTable kNext = widened(kTable.next);
  static constexpr WideTable kScale = widened(kTable.scale);
  static constexpr WideTable kOffset = widened(kTable.offset);
  static constexpr WideTable kLast = widened(kTable.last);

  // decode_signed and decode_not_negative, before they are scaled.
  static HWY_INLINE FloatVector entries_of(const std::uint8_t* codes) {
    const Floats d;
    const Ints di;
    if constexpr (kSigned) {
      const hn::Rebind<std::int8_t, Floats> signed_bytes;
      const auto code = hn::PromoteTo(di, hn::LoadU(signed_bytes, reinterpret_cast<const std::int8_t*>(codes)));
      const auto number = hn::ConvertTo(d, hn::Add(code, code));
      const auto decade = hn::BitCast(di, hn::ShiftRight<23>(hn::BitCast(Bits(), number)));
      const auto start = hn::Xor(lookup(kStart, decade), hn::And(number, hn::SignBit(d)));
      return hn::NegMulAdd(number, lookup(kSlope, decade), start);
    } else {
      const auto code = hn::PromoteTo(di, hn::LoadU(Bytes(), codes));
      const auto number = hn::ConvertTo(d, hn::Add(code, hn::Set(di, 1)));
      const auto decade = hn::BitCast(di, hn::ShiftRight<23>(hn::BitCast(Bits(), number)));
      return hn::MulAdd(number, lookup(kSlope, decade), lookup(kStart, decade));
    }
  }

  static void decode(const std::uint8_t* codes, float scale, float* values, std::size_t numel) {
    const Floats d;
    const auto factor = hn::Set(d, scale);
    std::size_t i = 0;
    for (; i + kLanes <= numel; i += kLanes) hn::StoreU(hn::Mul(entries_of(codes + i), factor), d, values + i);
    if (i < numel) scalar::state_kernels().decode_block[kSigned ? 0 : 1](codes + i, scale, values + i, numel - i);
  }

  static HWY_INLINE std::uint32_t largest_bits(const float* values, std::size_t numel) {
    const Floats d;
    const Ints di;
    auto largest = hn::Zero(di);
    std::size_t i = 0;
    for (; i + kLanes <= numel; i += kLanes) {
      largest = hn::Max(largest, hn::BitCast(di, hn::Abs(hn::LoadU(d, values + i))));
    }
    auto result = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest)));
    for (; i < numel; ++i) result = std::max(result, float_bits(values[i]) & 0x7fffffffu);
    return result;
  }

  // dynamic_rank.
  static HWY_INLINE FloatVector rank_of(FloatVector value) {
    const Floats d;
    const Ints di;
    const auto bits = hn::ConvertTo(d, hn::BitCast(di, value));
    const auto estimate = hn::MulAdd(bits, hn::Set(d, kDecadesPerBit), hn::Set(d, kDecadeOfZero));
    auto decade = rounded(hn::Max(estimate, hn::Zero(d)));
    const auto reaches_next = hn::VecFromMask(d, hn::Ge(value, lookup(kNext, decade)));
    decade = hn::Sub(decade, hn::BitCast(di, reaches_next));  // all ones is -1
    const auto rank = hn::MulAdd(value, lookup(kScale, decade), lookup(kOffset, decade));
    return hn::Min(rank, lookup(kLast, decade));
  }

  // The nearest integer, in the low bits.
  static HWY_INLINE IntVector rounded(FloatVector value) {
    return hn::BitCast(Ints(), hn::Add(value, hn::Set(Floats(), kRounder)));
  }

  static HWY_INLINE void encode_vector(const float* values, FloatVector inverse, std::uint8_t* codes) {
    const Floats d;
    const Ints di;
    const auto value = hn::LoadU(d, values);
    const auto magnitude = hn::Abs(value);
    auto rank = rank_of(hn::Mul(magnitude, inverse));
    auto code = hn::Zero(di);
    if constexpr (kSigned) {
      rank = hn::Xor(rank, hn::AndNot(value, hn::SignBit(d)));
      code = rounded(hn::Min(rank, hn::Set(d, 127.0f)));
    } else {
      const auto is_zero = hn::RebindMask(di, hn::Eq(magnitude, hn::Zero(d)));
      code = hn::IfThenZeroElse(is_zero, rounded(hn::Max(rank, hn::Set(d, 1.0f))));
    }
    hn::StoreU(hn::TruncateTo(Bytes(), hn::BitCast(Bits(), code)), Bytes(), codes);
  }

  static void encode_from(std::size_t i, const float* values, float inverse, std::uint8_t* codes, std::size_t numel) {
    if (inverse == 0) {
      std::fill(codes + i, codes + numel, std::uint8_t{0});
      return;
    }
    for (; i + kLanes <= numel; i += kLanes) encode_vector(values + i, hn::Set(Floats(), inverse), codes + i);
    for (; i < numel; ++i)
      codes[i] = kSigned ? encode_signed(values[i], inverse) : encode_not_negative(values[i], inverse);
  }

  static float encode(const float* values, std::uint8_t* codes, std::size_t numel) {
    const BlockScale scale = block_scale(largest_bits(values, numel));
    encode_from(0, values, scale.inverse, codes, numel);
    return scale.stored;
  }
};

}  // namespace strata::cpu_adam::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
