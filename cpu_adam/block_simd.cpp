// The loops of block_scalar.cpp in vectors, equal to them bit for bit; see update_simd.cpp. A block passes through
// arrays that stay in the first cache: its values in fp32, and its codes as one byte each.
#include <algorithm>
#include <type_traits>

#include "cpu_adam/block_kernels.h"
#include "cpu_adam/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_adam/block_simd.cpp"
#include "hwy/foreach_target.h"  // includes this file again for each target
#include "hwy/highway.h"

#if STRATA_IS_VECTOR_TARGET
#include "cpu_adam/coder-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu_adam::HWY_NAMESPACE {
namespace {

using Pairs = hn::ScalableTag<std::uint16_t>;  // two codes, one in each byte
using PairBytes = hn::Repartition<std::uint8_t, Pairs>;
using PackedBytes = hn::Rebind<std::uint8_t, Pairs>;
constexpr std::size_t kPairs = hn::MaxLanes(Pairs());

// Codes as one signed byte each, of a whole block.
struct WideCodes {
  alignas(64) std::uint8_t bytes[kScaleBlock];
};

void pack(const WideCodes& wide, std::uint8_t* packed, std::size_t numel) {
  const Pairs d;
  std::size_t i = 0;
  for (; i + 2 * kPairs <= numel; i += 2 * kPairs) {
    const auto pair = hn::BitCast(d, hn::Load(PairBytes(), wide.bytes + i));
    const auto low = hn::And(pair, hn::Set(d, std::uint16_t{0x000f}));
    const auto high = hn::And(hn::ShiftRight<4>(pair), hn::Set(d, std::uint16_t{0x00f0}));
    hn::StoreU(hn::TruncateTo(PackedBytes(), hn::Or(low, high)), PackedBytes(), packed + i / 2);
  }
  for (; i < numel; i += 2) packed[i / 2] = pack_codes(wide.bytes[i], i + 1 < numel ? wide.bytes[i + 1] : 0);
}

void unpack(const std::uint8_t* packed, WideCodes& wide, std::size_t numel) {
  const Pairs d;
  const PairBytes db;
  const auto sign = hn::Set(db, std::uint8_t{8});
  std::size_t i = 0;
  for (; i + 2 * kPairs <= numel; i += 2 * kPairs) {
    const auto both = hn::PromoteTo(d, hn::LoadU(PackedBytes(), packed + i / 2));
    const auto low = hn::And(both, hn::Set(d, std::uint16_t{0x000f}));
    const auto high = hn::And(hn::ShiftLeft<4>(both), hn::Set(d, std::uint16_t{0x0f00}));
    hn::Store(hn::Sub(hn::Xor(hn::BitCast(db, hn::Or(low, high)), sign), sign), db, wide.bytes + i);
  }
  for (; i < numel; ++i) {
    const std::uint8_t pair = packed[i / 2];
    wide.bytes[i] = static_cast<std::uint8_t>(i % 2 == 0 ? low_code(pair) : high_code(pair));
  }
}

template <typename From>
void load_values(const typename From::Stored* from, float* values, std::size_t numel) {
  std::size_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) hn::Store(load(Floats(), From(), from + i), Floats(), values + i);
  for (; i < numel; ++i) values[i] = From::decode(from[i]);
}

// encode_in_block for each value.
template <BlockCode kCode>
void encode_values(const float* values, float inverse_scale, std::uint8_t* codes, std::size_t numel) {
  if (inverse_scale == 0) {
    std::fill(codes, codes + numel, std::uint8_t{0});
    return;
  }
  const Floats d;
  const auto inverse = hn::Set(d, inverse_scale);
  const auto largest = hn::Set(d, largest_code(kCode));
  const auto rounder = hn::Set(d, kRounder);
  std::size_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) {
    const auto sum = hn::MulAdd(hn::Mul(hn::LoadU(d, values + i), inverse), largest, rounder);
    hn::StoreU(hn::TruncateTo(Bytes(), hn::BitCast(Bits(), sum)), Bytes(), codes + i);
  }
  for (; i < numel; ++i) {
    codes[i] = static_cast<std::uint8_t>(encode_in_block(values[i], inverse_scale, largest_code(kCode)));
  }
}

template <BlockCode kCode, typename From>
float encode(const std::byte* stored, std::uint8_t* codes, std::size_t numel) {
  alignas(64) float buffer[kScaleBlock];
  const float* values = buffer;
  if constexpr (std::is_same_v<From, F32>) {
    values = stored_as<F32>(stored);
  } else {
    load_values<From>(stored_as<From>(stored), buffer, numel);
  }
  const BlockScale scale = block_scale(Coder<true>::largest_bits(values, numel));
  if constexpr (kCode == BlockCode::Int8) {
    encode_values<kCode>(values, scale.inverse, codes, numel);
  } else {
    WideCodes wide;
    encode_values<kCode>(values, scale.inverse, wide.bytes, numel);
    pack(wide, codes, numel);
  }
  return scale.stored;
}

// Calls vector(i, values) for as many whole vectors of decoded elements as there are, then one(i, value).
template <BlockCode kCode, typename Vector, typename One>
HWY_INLINE void for_each_decoded(const std::uint8_t* codes, float scale, std::size_t numel, Vector vector, One one) {
  WideCodes wide;
  if constexpr (kCode == BlockCode::Int4) {
    unpack(codes, wide, numel);
    codes = wide.bytes;
  }
  const auto* const signed_codes = reinterpret_cast<const std::int8_t*>(codes);
  const Floats d;
  const hn::Rebind<std::int8_t, Floats> signed_bytes;
  const auto step = hn::Set(d, code_step(kCode));
  const auto factor = hn::Set(d, scale);
  std::size_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) {
    const auto code = hn::ConvertTo(d, hn::PromoteTo(Ints(), hn::LoadU(signed_bytes, signed_codes + i)));
    vector(i, hn::Mul(hn::Mul(code, step), factor));
  }
  for (; i < numel; ++i) one(i, decode_in_block(signed_codes[i], scale, code_step(kCode)));
}

template <BlockCode kCode, typename To>
void decode(const std::uint8_t* codes, float scale, std::byte* values, std::size_t numel) {
  auto* const to = stored_as<To>(values);
  for_each_decoded<kCode>(
      codes, scale, numel, [to](std::size_t i, FloatVector value) HWY_ATTR { store(Floats(), To(), value, to + i); },
      [to](std::size_t i, float value) { to[i] = To::encode(value); });
}

template <BlockCode kCode>
void decode_add(const std::uint8_t* codes, float scale, std::byte* sum, std::size_t numel) {
  auto* const to = stored_as<F32>(sum);
  for_each_decoded<kCode>(
      codes, scale, numel,
      [to](std::size_t i, FloatVector value)
          HWY_ATTR { hn::StoreU(hn::Add(hn::LoadU(Floats(), to + i), value), Floats(), to + i); },
      [to](std::size_t i, float value) { to[i] += value; });
}

template <BlockCode kCode>
constexpr std::array<BlockKernels::Encode, kEncodings> kEncodeRow = {&encode<kCode, F32>, &encode<kCode, Bf16>,
                                                                     &encode<kCode, F16>};
template <BlockCode kCode>
constexpr std::array<BlockKernels::Decode, kEncodings> kDecodeRow = {&decode<kCode, F32>, &decode<kCode, Bf16>,
                                                                     &decode<kCode, F16>};

constexpr BlockKernels kKernels = {
    .encode = {kEncodeRow<BlockCode::Int8>, kEncodeRow<BlockCode::Int4>},
    .decode = {kDecodeRow<BlockCode::Int8>, kDecodeRow<BlockCode::Int4>},
    .decode_add = {&decode_add<BlockCode::Int8>, &decode_add<BlockCode::Int4>},
};

}  // namespace

const BlockKernels* block_kernels() {
  return &kKernels;
}

}  // namespace strata::cpu_adam::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // STRATA_IS_VECTOR_TARGET

#if HWY_ONCE
namespace strata::cpu_adam {

const BlockKernels* simd_block_kernels(Isa isa) {
  return STRATA_ON_ISA(isa, block_kernels());
}

}  // namespace strata::cpu_adam
#endif  // HWY_ONCE
