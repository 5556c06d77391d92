// Vector loads and stores of the element types, compiled once per Highway target; equal to encodings.h in every bit.
// Integer arithmetic only, so that rounding follows [Note: rounding] in core/numeric.h: Highway 1.0.3's DemoteTo
// truncates to bf16, and the processor's fp16 conversions round ties to even and make signalling NaNs quiet.
#if defined(STRATA_ENCODINGS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef STRATA_ENCODINGS_INL_H
#undef STRATA_ENCODINGS_INL_H
#else
#define STRATA_ENCODINGS_INL_H
#endif

#include "core/encodings.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu_adam::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// D is a tag of float lanes, of any vector width.
template <class D>
using BitsTag = hn::RebindToUnsigned<D>;
template <class D>
using HalfBitsTag = hn::Rebind<std::uint16_t, D>;

template <class D>
HWY_INLINE hn::Vec<D> load(D d, F32, const float* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, Bf16, const std::uint16_t* from) {
  const auto half = hn::LoadU(HalfBitsTag<D>(), from);
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(BitsTag<D>(), half)));
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, F16, const std::uint16_t* from) {
  const BitsTag<D> du;
  const hn::RebindToSigned<D> di;
  const auto half = hn::PromoteTo(du, hn::LoadU(HalfBitsTag<D>(), from));
  const auto magnitude = hn::And(half, hn::Set(du, 0x7fffu));
  const auto sign = hn::ShiftLeft<16>(hn::Xor(half, magnitude));
  // The exponent's bias grows from 15 to 127; all ones (infinity, NaN) must become all ones, so they get the offset
  // twice.
  const auto bias = hn::Set(du, 112u << 23);
  const auto normal = hn::Add(hn::ShiftLeft<13>(magnitude), bias);
  const auto is_special = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x7bff));
  const auto finite_or_special = hn::IfThenElse(hn::RebindMask(du, is_special), hn::Add(normal, bias), normal);
  // A subnormal half is magnitude * 2^-24, a normal float: both steps are exact.
  const auto small = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, magnitude)), hn::Set(d, 0x1p-24f));
  const auto is_small = hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, 0x400));
  const auto bits = hn::IfThenElse(hn::RebindMask(du, is_small), hn::BitCast(du, small), finite_or_special);
  return hn::BitCast(d, hn::Or(sign, bits));
}

template <class D>
HWY_INLINE void store(D d, F32, hn::Vec<D> value, float* to) {
  hn::StoreU(value, d, to);
}

// The 16-bit codes of float lanes, in half a vector.
template <class D>
HWY_INLINE hn::Vec<HalfBitsTag<D>> codes(D, Bf16, hn::Vec<D> value) {
  const BitsTag<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(du, value);
  const auto magnitude = hn::BitCast(di, hn::And(bits, hn::Set(du, 0x7fffffffu)));
  const auto is_nan = hn::RebindMask(du, hn::Gt(magnitude, hn::Set(di, 0x7f800000)));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Set(du, 0x8000u)));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40u));
  // Below 2^16, so the saturating DemoteTo changes nothing.
  return hn::DemoteTo(HalfBitsTag<D>(), hn::BitCast(di, hn::IfThenElse(is_nan, quiet, rounded)));
}

// float_to_half of core/numeric.h, its branches as selections; see there for the ranges.
template <class D>
HWY_INLINE hn::Vec<HalfBitsTag<D>> codes(D, F16, hn::Vec<D> value) {
  const BitsTag<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(du, value);
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000u));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
  const auto above = [&](std::int32_t limit) HWY_ATTR {
    return hn::RebindMask(du, hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, limit)));
  };
  const auto normal = hn::ShiftRight<13>(hn::Sub(hn::Add(magnitude, hn::Set(du, 0x1000u)), hn::Set(du, 0x38000000u)));
  const auto mantissa = hn::Or(hn::And(magnitude, hn::Set(du, 0x7fffffu)), hn::Set(du, 0x800000u));
  const auto shift = hn::Sub(hn::Set(du, 126u), hn::ShiftRight<23>(magnitude));
  const auto half_unit = hn::Set(du, 1u) << hn::Sub(shift, hn::Set(du, 1u));
  const auto small = hn::Add(mantissa, half_unit) >> shift;
  auto result = hn::IfThenElseZero(above(0x32ffffff), small);
  result = hn::IfThenElse(above(0x387fffff), normal, result);
  result = hn::IfThenElse(above(0x477fffff), hn::Set(du, 0x7c00u), result);
  const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3ffu));
  result = hn::IfThenElse(above(0x7f800000), hn::Or(payload, hn::Set(du, 0x7e00u)), result);
  return hn::DemoteTo(HalfBitsTag<D>(), hn::BitCast(di, hn::Or(sign, result)));
}

// [Note: remainder] of core/state_encodings.h: a bf16 parameter and what it lacks.
template <class D>
HWY_INLINE hn::Vec<D> load_joined(D d, const std::uint16_t* param, const std::uint16_t* remainder) {
  const BitsTag<D> du;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<std::int16_t, D> dh;
  const auto high = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(HalfBitsTag<D>(), param)));
  const auto lacking = hn::PromoteTo(di, hn::LoadU(dh, reinterpret_cast<const std::int16_t*>(remainder)));
  return hn::BitCast(d, hn::Add(high, hn::BitCast(du, lacking)));
}

// The low 16 bits of float lanes.
template <class D>
HWY_INLINE hn::Vec<HalfBitsTag<D>> low_halves(D, hn::Vec<D> value) {
  const BitsTag<D> du;
  const hn::RebindToSigned<D> di;
  const auto low = hn::And(hn::BitCast(du, value), hn::Set(du, 0xffffu));
  return hn::DemoteTo(HalfBitsTag<D>(), hn::BitCast(di, low));
}

template <class D, class Encoding>
HWY_INLINE void store(D d, Encoding encoding, hn::Vec<D> value, std::uint16_t* to) {
  hn::StoreU(codes(d, encoding, value), HalfBitsTag<D>(), to);
}

}  // namespace strata::cpu_adam::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
