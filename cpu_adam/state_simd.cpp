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

// Both moments in one loop: twice as many independent instructions, where one alone would wait for its own results.
std::array<float, 2> encode_pair(const std::array<const float*, 2>& values, const std::array<std::uint8_t*, 2>& codes,
                                 std::size_t numel) {
  using First = Coder<true>;
  using Second = Coder<false>;
  const BlockScale first = block_scale(First::largest_bits(values[0], numel));
  const BlockScale second = block_scale(Second::largest_bits(values[1], numel));
  std::size_t i = 0;
  if (first.inverse != 0 && second.inverse != 0) {
    const auto first_inverse = hn::Set(Floats(), first.inverse);
    const auto second_inverse = hn::Set(Floats(), second.inverse);
    for (; i + kLanes <= numel; i += kLanes) {
      First::encode_vector(values[0] + i, first_inverse, codes[0] + i);
      Second::encode_vector(values[1] + i, second_inverse, codes[1] + i);
    }
  }
  First::encode_from(i, values[0], first.inverse, codes[0], numel);
  Second::encode_from(i, values[1], second.inverse, codes[1], numel);
  return {first.stored, second.stored};
}

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
    .encode_pair = &encode_pair,
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
