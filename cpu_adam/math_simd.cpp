// The loops of math_scalar.h in vectors. Highway compiles this file once per target; every function is equal to its
// scalar definition bit for bit because it performs the same correctly rounded operations in the same order per
// element.
#include "cpu_adam/math_scalar.h"

#include <type_traits>

#include "core/encodings.h"
#include "cpu_adam/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_adam/math_simd.cpp"
#include "hwy/foreach_target.h"  // includes this file again for each target
#include "hwy/highway.h"

#if STRATA_IS_VECTOR_TARGET
#include "cpu_adam/encodings-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu_adam::HWY_NAMESPACE {
namespace {

using Floats = hn::ScalableTag<float>;
using Doubles = hn::ScalableTag<double>;
constexpr std::size_t kLanes = hn::MaxLanes(Floats());

template <typename Destination, typename Source>
void cast_run(std::byte* destination, const std::byte* source, std::size_t numel) {
  const Floats d;
  const auto* from = stored_as<Source>(source);
  auto* to = stored_as<Destination>(destination);
  std::size_t i = 0;
  if constexpr (!std::is_same_v<Destination, Source>) {
    for (; i + kLanes <= numel; i += kLanes) store(d, Destination(), load(d, Source(), from + i), to + i);
  }
  if (i < numel) {
    scalar::kernels().cast[Destination::kIndex][Source::kIndex](
        reinterpret_cast<std::byte*>(to + i), reinterpret_cast<const std::byte*>(from + i), numel - i);
  }
}

template <typename Destination, typename Source>
void accumulate_run(std::byte* destination, const std::byte* source, std::size_t numel) {
  const Floats d;
  const auto* from = stored_as<Source>(source);
  auto* to = stored_as<Destination>(destination);
  std::size_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) {
    const auto sum = hn::Add(load(d, Destination(), to + i), load(d, Source(), from + i));
    store(d, Destination(), sum, to + i);
  }
  if (i < numel) {
    scalar::kernels().accumulate[Destination::kIndex][Source::kIndex](
        reinterpret_cast<std::byte*>(to + i), reinterpret_cast<const std::byte*>(from + i), numel - i);
  }
}

// See [Note: norm order]. The product of two floats is exact in double, so MulAdd equals the scalar multiply and add.
template <typename Encoding>
double sum_of_squares(const std::byte* values, std::size_t numel) {
  const Doubles dd;
  const hn::Rebind<float, Doubles> df;
  constexpr std::size_t kDoubles = hn::MaxLanes(Doubles());
  constexpr std::size_t kVectors = scalar::kSumLanes / kDoubles;
  const auto* stored = stored_as<Encoding>(values);
  hn::Vec<Doubles> sums[kVectors];
  for (auto& sum : sums) sum = hn::Zero(dd);
  std::size_t i = 0;
  for (; i + scalar::kSumLanes <= numel; i += scalar::kSumLanes) {
    for (std::size_t k = 0; k < kVectors; ++k) {
      const auto value = hn::PromoteTo(dd, load(df, Encoding(), stored + i + k * kDoubles));
      sums[k] = hn::MulAdd(value, value, sums[k]);
    }
  }
  scalar::SumLanes lanes;
  for (std::size_t k = 0; k < kVectors; ++k) hn::StoreU(sums[k], dd, lanes.data() + k * kDoubles);
  scalar::add_squares(lanes, Encoding::kIndex, values, i, numel);
  return scalar::fold(lanes);
}

template <typename To>
constexpr std::array<ShardKernels::Convert, kEncodings> kCastRow = {&cast_run<To, F32>, &cast_run<To, Bf16>,
                                                                    &cast_run<To, F16>};
template <typename To>
constexpr std::array<ShardKernels::Convert, kEncodings> kAccumulateRow = {
    &accumulate_run<To, F32>, &accumulate_run<To, Bf16>, &accumulate_run<To, F16>};

constexpr ShardKernels kKernels = {
    .cast = {kCastRow<F32>, kCastRow<Bf16>, kCastRow<F16>},
    .accumulate = {kAccumulateRow<F32>, kAccumulateRow<Bf16>, kAccumulateRow<F16>},
    .sum_of_squares = {&sum_of_squares<F32>, &sum_of_squares<Bf16>, &sum_of_squares<F16>},
};

}  // namespace

const ShardKernels* kernels() {
  return &kKernels;
}

}  // namespace strata::cpu_adam::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // STRATA_IS_VECTOR_TARGET

#if HWY_ONCE
namespace strata::cpu_adam {

const ShardKernels* simd_shard_kernels(Isa isa) {
  return STRATA_ON_ISA(isa, kernels());
}

}  // namespace strata::cpu_adam
#endif  // HWY_ONCE
