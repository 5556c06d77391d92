// The loops of adam_scalar.h in vectors. Highway compiles this file once per target; every function is equal to its
// scalar definition bit for bit because it performs the same correctly rounded operations in the same order per
// element.
#include "cpu_adam/adam_scalar.h"

#include <type_traits>

#include "core/encodings.h"
#include "hwy/cache_control.h"

// Targets without fused multiply-add are left out: Highway's MulAdd would round twice there (docs/numerics.md, 2).
#define HWY_DISABLED_TARGETS (HWY_SSE4 | HWY_SSSE3)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_adam/adam_simd.cpp"
#include "hwy/foreach_target.h"  // includes this file again for each target
#include "hwy/highway.h"

#if HWY_TARGET & (HWY_AVX2 | HWY_AVX3)
#include "cpu_adam/encodings-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu_adam::HWY_NAMESPACE {
namespace {

using Floats = hn::ScalableTag<float>;
using Doubles = hn::ScalableTag<double>;
constexpr std::size_t kLanes = hn::MaxLanes(Floats());

template <typename Param, typename Grad>
AdamRun remainder(const AdamRun& run, std::size_t first) {
  AdamRun rest = run;
  if (run.param != nullptr) rest.param += first * sizeof(typename Param::Stored);
  rest.grad += first * sizeof(typename Grad::Stored);
  rest.master += first;
  rest.exp_avg += first;
  rest.exp_avg_sq += first;
  rest.numel -= first;
  return rest;
}

using FloatVector = hn::Vec<Floats>;

// The constants of a step in every lane, and the run's arrays: locals of the loop, so that stores cannot alias them.
template <typename Grad>
struct VectorStep {
  VectorStep(const AdamConstants& constants, const AdamRun& run)
      : grad_scale(hn::Set(Floats(), constants.grad_scale)),
        one_minus_beta1(hn::Set(Floats(), constants.one_minus_beta1)),
        beta2(hn::Set(Floats(), constants.beta2)),
        one_minus_beta2(hn::Set(Floats(), constants.one_minus_beta2)),
        inv_sqrt_bias_correction2(hn::Set(Floats(), constants.inv_sqrt_bias_correction2)),
        epsilon(hn::Set(Floats(), constants.epsilon)),
        negative_step_size(hn::Set(Floats(), constants.negative_step_size)),
        decay_factor(hn::Set(Floats(), run.decay_factor)),
        grad(stored_as<Grad>(run.grad)),
        master(run.master),
        exp_avg(run.exp_avg),
        exp_avg_sq(run.exp_avg_sq) {}

  // adam_update of core/adam_math.h for the elements [i, i + kLanes), line by line. Returns the new masters.
  HWY_INLINE FloatVector update(std::size_t i) const {
    const Floats d;
    const auto g = hn::Mul(load(d, Grad(), grad + i), grad_scale);
    auto m = hn::LoadU(d, exp_avg + i);
    m = hn::MulAdd(one_minus_beta1, hn::Sub(g, m), m);
    auto v = hn::LoadU(d, exp_avg_sq + i);
    v = hn::MulAdd(hn::Mul(one_minus_beta2, g), g, hn::Mul(beta2, v));
    const auto denom = hn::MulAdd(hn::Sqrt(v), inv_sqrt_bias_correction2, epsilon);
    const auto decayed = hn::Mul(hn::LoadU(d, master + i), decay_factor);
    const auto updated = hn::MulAdd(negative_step_size, hn::Div(m, denom), decayed);
    hn::StoreU(m, d, exp_avg + i);
    hn::StoreU(v, d, exp_avg_sq + i);
    hn::StoreU(updated, d, master + i);
    return updated;
  }

  FloatVector grad_scale, one_minus_beta1, beta2, one_minus_beta2, inv_sqrt_bias_correction2, epsilon;
  FloatVector negative_step_size, decay_factor;
  const typename Grad::Stored* grad;
  float *master, *exp_avg, *exp_avg_sq;
};

// Whole vectors of 16-bit parameters, written past the cache: the step reads no parameter, so a plain store would first
// fetch the line it overwrites, 2 bytes more per element. 7 to 9 % faster in the median of 9 interleaved rounds on a
// two-core Zen 3 guest that did other work as well; software prefetch of 128 to 1,024 elements gained nothing there.
// Requires: `param` is aligned to a vector. Returns the elements done, a multiple of 2 * kLanes.
template <typename Param, typename Grad>
std::size_t stream_pairs(const VectorStep<Grad> step, std::uint16_t* param, std::size_t numel) {
  const Floats d;
  const hn::ScalableTag<std::uint16_t> codes_tag;
  std::size_t i = 0;
  for (; i + 2 * kLanes <= numel; i += 2 * kLanes) {
    const auto low = codes(d, Param(), step.update(i));
    const auto high = codes(d, Param(), step.update(i + kLanes));
    hn::Stream(hn::Combine(codes_tag, high, low), codes_tag, param + i);
  }
  hwy::FlushStream();  // streamed stores are weakly ordered: make them visible before the run counts as done
  return i;
}

template <typename Param, typename Grad>
void adam_run(const AdamConstants& constants, const AdamRun& run) {
  const Floats d;
  const VectorStep<Grad> step(constants, run);
  auto* param = stored_as<Param>(run.param);
  const std::size_t numel = run.numel;
  std::size_t i = 0;
  if constexpr (!std::is_same_v<Param, F32>) {
    if (reinterpret_cast<std::uintptr_t>(param) % (2 * kLanes * sizeof(*param)) == 0)
      i = stream_pairs<Param, Grad>(step, param, numel);
  }
  for (; i + kLanes <= numel; i += kLanes) {
    const auto updated = step.update(i);
    if constexpr (!std::is_same_v<Param, F32>) store(d, Param(), updated, param + i);
  }
  if (i < numel) scalar::kernels().adam[Param::kIndex][Grad::kIndex](constants, remainder<Param, Grad>(run, i));
}

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

template <typename Param>
constexpr std::array<ShardKernels::Adam, kEncodings> kAdamRow = {&adam_run<Param, F32>, &adam_run<Param, Bf16>,
                                                                 &adam_run<Param, F16>};
template <typename To>
constexpr std::array<ShardKernels::Convert, kEncodings> kCastRow = {&cast_run<To, F32>, &cast_run<To, Bf16>,
                                                                    &cast_run<To, F16>};
template <typename To>
constexpr std::array<ShardKernels::Convert, kEncodings> kAccumulateRow = {
    &accumulate_run<To, F32>, &accumulate_run<To, Bf16>, &accumulate_run<To, F16>};

constexpr ShardKernels kKernels = {
    .isa = HWY_TARGET == HWY_AVX2 ? Isa::Avx2 : Isa::Avx512,
    .adam = {kAdamRow<F32>, kAdamRow<Bf16>, kAdamRow<F16>},
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
#endif  // a target with fused multiply-add

#if HWY_ONCE
namespace strata::cpu_adam {

const ShardKernels* simd_kernels(Isa isa) {
  // What the processor has and the operating system saves on a context switch.
  [[maybe_unused]] const auto supported = hwy::SupportedTargets();
#if HWY_TARGETS & HWY_AVX2
  if (isa == Isa::Avx2 && (supported & HWY_AVX2) != 0) return N_AVX2::kernels();
#endif
#if HWY_TARGETS & HWY_AVX3
  if (isa == Isa::Avx512 && (supported & HWY_AVX3) != 0) return N_AVX3::kernels();
#endif
  return nullptr;
}

}  // namespace strata::cpu_adam
#endif  // HWY_ONCE
