// The loops of state_scalar.cpp in vectors, equal to them bit for bit; see update_simd.cpp.
#include <algorithm>

#include "cpu_adam/simd_targets.h"
#include "cpu_adam/update_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_adam/state_simd.cpp"
#include "hwy/foreach_target.h"  // includes this file again for each target
#include "hwy/highway.h"

#if STRATA_IS_VECTOR_TARGET
#include "cpu_adam/encodings-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu_adam::HWY_NAMESPACE {
namespace {

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

void round_stochastically(const StochasticRun& run) {
  const Floats d;
  const Bits du;
  const auto first_key = hn::Set(du, run.key.first);
  const auto second_key = hn::Set(du, run.key.second);
  auto index = hn::Iota(du, run.first_index);
  std::size_t i = 0;
  for (; i + kLanes <= run.numel; i += kLanes, index = hn::Add(index, hn::Set(du, std::uint32_t{kLanes}))) {
    const auto word = mix_bits(hn::Xor(mix_bits(hn::Xor(index, first_key)), second_key));
    store_rounded(hn::LoadU(d, run.values[0] + i), hn::And(word, hn::Set(du, 0xffffu)), run.codes[0] + i);
    if (run.moments == 2) {
      store_rounded(hn::LoadU(d, run.values[1] + i), hn::ShiftRight<16>(word), run.codes[1] + i);
    }
  }
  if (i == run.numel) return;
  StochasticRun rest = run;
  for (std::size_t k = 0; k < run.moments; ++k) {
    rest.values[k] += i;
    rest.codes[k] += i;
  }
  rest.numel -= i;
  rest.first_index += static_cast<std::uint32_t>(i);
  scalar::state_kernels().round_stochastically(rest);
}

// A table of eight entries for lookup(): twice in a row, so that it fills a vector of 16 lanes too.
struct WideTable {
  alignas(64) float entries[16];
};
constexpr WideTable widened(const float (&entries)[kDecades]) {
  WideTable wide = {};
  for (std::size_t i = 0; i < 16; ++i) wide.entries[i] = entries[i % kDecades];
  return wide;
}

// Requires of every index: 0 <= index < 8.
HWY_INLINE FloatVector lookup(const WideTable& table, IntVector index) {
  const Floats d;
  if constexpr (kLanes >= kDecades) {
    return hn::TableLookupLanes(hn::Load(d, table.entries), hn::IndicesFromVec(d, index));
  } else {
    const Ints di;
    const auto place = hn::IndicesFromVec(d, hn::And(index, hn::Set(di, 3)));
    const auto low = hn::TableLookupLanes(hn::Load(d, table.entries), place);
    const auto high = hn::TableLookupLanes(hn::Load(d, table.entries + 4), place);
    return hn::IfThenElse(hn::RebindMask(d, hn::Gt(index, hn::Set(di, 3))), high, low);
  }
}

// One of the two tables of core/state_encodings.h.
template <bool kSigned>
struct Coder {
  static constexpr DynamicTable kTable = kSigned ? kSignedTable : kNotNegativeTable;
  static constexpr WideTable kSlope = widened(kTable.slope);
  static constexpr WideTable kStart = widened(kTable.start);
  static constexpr WideTable kNext = widened(kTable.next);
  static constexpr WideTable kScale = widened(kTable.scale);
  static constexpr WideTable kOffset = widened(kTable.offset);
  static constexpr WideTable kLast = widened(kTable.last);

  // dynamic_entry, with the sign of the rank.
  static HWY_INLINE FloatVector entry(IntVector rank) {
    const Floats d;
    const Bits du;
    const Ints di;
    const auto number = hn::BitCast(du, hn::ConvertTo(d, hn::Add(rank, hn::Set(di, kTable.first_bits))));
    const auto exponent = hn::Sub(hn::ShiftRight<23>(number), hn::Set(du, 127 + kTable.first_bits));
    const auto decade = hn::BitCast(di, hn::And(exponent, hn::Set(du, 7)));
    const auto one = hn::Set(d, 1.0f);
    const auto mantissa = hn::Or(hn::And(number, hn::Set(du, 0x7fffffu)), hn::BitCast(du, one));
    const auto fraction = hn::Sub(hn::BitCast(d, mantissa), one);
    const auto value = hn::MulAdd(fraction, lookup(kSlope, decade), lookup(kStart, decade));
    const auto is_zero = hn::RebindMask(d, hn::Eq(rank, hn::Zero(di)));
    const auto magnitude = hn::IfThenZeroElse(is_zero, value);
    if constexpr (!kSigned) return magnitude;
    return hn::Or(magnitude, hn::And(hn::SignBit(d), hn::BitCast(d, number)));
  }

  static void decode(const std::uint8_t* codes, float scale, float* values, std::size_t numel) {
    const Floats d;
    const Ints di;
    const auto factor = hn::Set(d, scale);
    std::size_t i = 0;
    for (; i + kLanes <= numel; i += kLanes) {
      auto rank = hn::PromoteTo(di, hn::LoadU(Bytes(), codes + i));
      if constexpr (kSigned) {
        const auto is_negative = hn::Gt(rank, hn::Set(di, 128));
        rank = hn::Sub(rank, hn::IfThenElseZero(is_negative, hn::Set(di, 256)));
      }
      hn::StoreU(hn::Mul(entry(rank), factor), d, values + i);
    }
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
    auto decade = hn::And(rounded(hn::Max(estimate, hn::Zero(d))), hn::Set(di, 7));
    const auto reaches_next = hn::VecFromMask(d, hn::Ge(value, lookup(kNext, decade)));
    decade = hn::Sub(decade, hn::BitCast(di, reaches_next));  // all ones is -1
    const auto rank = hn::MulAdd(value, lookup(kScale, decade), lookup(kOffset, decade));
    return hn::Min(rank, lookup(kLast, decade));
  }

  // The nearest integer, in the low bits.
  static HWY_INLINE IntVector rounded(FloatVector value) {
    return hn::BitCast(Ints(), hn::Add(value, hn::Set(Floats(), kRounder)));
  }

  static float encode(const float* values, std::uint8_t* codes, std::size_t numel) {
    const Floats d;
    const Ints di;
    const BlockScale scale = block_scale(largest_bits(values, numel));
    if (scale.inverse == 0) {
      std::fill_n(codes, numel, std::uint8_t{0});
      return scale.stored;
    }
    const auto inverse = hn::Set(d, scale.inverse);
    std::size_t i = 0;
    for (; i + kLanes <= numel; i += kLanes) {
      const auto value = hn::LoadU(d, values + i);
      const auto magnitude = hn::Abs(value);
      auto rank = rank_of(hn::Mul(magnitude, inverse));
      auto code = hn::Zero(di);
      if constexpr (kSigned) {
        rank = hn::Xor(rank, hn::And(value, hn::SignBit(d)));
        code = rounded(hn::Max(rank, hn::Set(d, -127.0f)));
      } else {
        const auto is_zero = hn::RebindMask(di, hn::Eq(magnitude, hn::Zero(d)));
        code = hn::IfThenZeroElse(is_zero, rounded(hn::Max(rank, hn::Set(d, 1.0f))));
      }
      hn::StoreU(hn::TruncateTo(Bytes(), hn::BitCast(Bits(), code)), Bytes(), codes + i);
    }
    for (; i < numel; ++i) {
      codes[i] = kSigned ? encode_signed(values[i], scale.inverse) : encode_not_negative(values[i], scale.inverse);
    }
    return scale.stored;
  }
};

void join_master(const std::uint16_t* param, const std::uint16_t* remainder, float* master, std::size_t numel) {
  const Floats d;
  std::size_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) hn::StoreU(load_joined(d, param + i, remainder + i), d, master + i);
  if (i < numel) scalar::state_kernels().join_master(param + i, remainder + i, master + i, numel - i);
}

void split_master(const float* master, std::uint16_t* param, std::uint16_t* remainder, std::size_t numel) {
  const Floats d;
  std::size_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) {
    const auto value = hn::LoadU(d, master + i);
    store(d, Bf16(), value, param + i);
    hn::StoreU(low_halves(d, value), HalfBitsTag<Floats>(), remainder + i);
  }
  if (i < numel) scalar::state_kernels().split_master(master + i, param + i, remainder + i, numel - i);
}

constexpr StateKernels kKernels = {
    .round_stochastically = &round_stochastically,
    .decode_block = {&Coder<true>::decode, &Coder<false>::decode},
    .encode_block = {&Coder<true>::encode, &Coder<false>::encode},
    .join_master = &join_master,
    .split_master = &split_master,
};

}  // namespace

const StateKernels* state_kernels() {
  return &kKernels;
}

}  // namespace strata::cpu_adam::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // STRATA_IS_VECTOR_TARGET

#if HWY_ONCE
namespace strata::cpu_adam {

const StateKernels* simd_state_kernels(Isa isa) {
  return STRATA_ON_ISA(isa, state_kernels());
}

}  // namespace strata::cpu_adam
#endif  // HWY_ONCE
