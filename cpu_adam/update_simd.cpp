// The loops of update_scalar.cpp in vectors. Highway compiles this file once per target; every function is equal to its
// scalar definition bit for bit because it performs the same correctly rounded operations in the same order per
// element.
#include <type_traits>

#include "cpu_adam/simd_targets.h"
#include "cpu_adam/update_kernels.h"
#include "hwy/cache_control.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_adam/update_simd.cpp"
#include "hwy/foreach_target.h"  // includes this file again for each target
#include "hwy/highway.h"

#if STRATA_IS_VECTOR_TARGET
#include "cpu_adam/encodings-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu_adam::HWY_NAMESPACE {
namespace {

using Floats = hn::ScalableTag<float>;
using FloatVector = hn::Vec<Floats>;
constexpr std::size_t kLanes = hn::MaxLanes(Floats());

// The constants of a step in every lane, and the run's arrays: locals of the loop, so that stores cannot alias them.
template <OptimizerKind kKind, typename Storage, typename Grad>
struct VectorStep {
  static constexpr bool kRemainder = std::is_same_v<Storage, Bf16Remainder>;

  VectorStep(const UpdateConstants& constants, const UpdateRun& run)
      : grad_scale(hn::Set(Floats(), constants.grad_scale)),
        momentum(hn::Set(Floats(), constants.momentum)),
        one_minus_beta1(hn::Set(Floats(), constants.one_minus_beta1)),
        beta2(hn::Set(Floats(), constants.beta2)),
        one_minus_beta2(hn::Set(Floats(), constants.one_minus_beta2)),
        inv_sqrt_bias_correction2(hn::Set(Floats(), constants.inv_sqrt_bias_correction2)),
        epsilon(hn::Set(Floats(), constants.epsilon)),
        negative_step_size(hn::Set(Floats(), constants.negative_step_size)),
        decay(hn::Set(Floats(), run.decay)),
        grad(stored_as<Grad>(run.grad)),
        param(stored_as<Storage>(run.param)),
        master(reinterpret_cast<float*>(run.master)),
        remainder(reinterpret_cast<std::uint16_t*>(run.master)),
        moment1(run.moments[0]),
        moment2(run.moments[1]) {}

  HWY_INLINE FloatVector load_master(std::size_t i) const {
    const Floats d;
    if constexpr (kRemainder) {
      return load_joined(d, param + i, remainder + i);
    } else {
      return hn::LoadU(d, master + i);
    }
  }

  HWY_INLINE void store_master(std::size_t i, FloatVector value) const {
    const Floats d;
    if constexpr (kRemainder) {
      hn::StoreU(low_halves(d, value), HalfBitsTag<Floats>(), remainder + i);
    } else {
      hn::StoreU(value, d, master + i);
    }
  }

  // sign_of of core/optimizer_math.h.
  static HWY_INLINE FloatVector sign(FloatVector value) {
    const Floats d;
    const auto is_signed = hn::Gt(hn::Abs(value), hn::Zero(d));  // false for zero and NaN
    return hn::IfThenElse(is_signed, hn::CopySign(hn::Set(d, 1.0f), value), value);
  }

  // update_element of core/optimizer_math.h for the elements [i, i + kLanes), line by line. Returns the new masters.
  HWY_INLINE FloatVector update(std::size_t i) const {
    const Floats d;
    auto g = hn::Mul(load(d, Grad(), grad + i), grad_scale);
    auto p = load_master(i);
    if constexpr (!decay_is_decoupled(kKind)) g = hn::MulAdd(decay, p, g);
    if constexpr (moments_of(kKind) == 2) {
      auto m = hn::LoadU(d, moment1 + i);
      m = hn::MulAdd(one_minus_beta1, hn::Sub(g, m), m);
      auto v = hn::LoadU(d, moment2 + i);
      v = hn::MulAdd(hn::Mul(one_minus_beta2, g), g, hn::Mul(beta2, v));
      const auto denom = hn::MulAdd(hn::Sqrt(v), inv_sqrt_bias_correction2, epsilon);
      if constexpr (kKind == OptimizerKind::AdamW) p = hn::Mul(p, decay);
      p = hn::MulAdd(negative_step_size, hn::Div(m, denom), p);
      hn::StoreU(m, d, moment1 + i);
      hn::StoreU(v, d, moment2 + i);
    } else if constexpr (kKind == OptimizerKind::Lion) {
      const auto m = hn::LoadU(d, moment1 + i);
      const auto direction = sign(hn::MulAdd(one_minus_beta1, hn::Sub(g, m), m));
      p = hn::MulAdd(negative_step_size, direction, hn::Mul(p, decay));
      hn::StoreU(hn::MulAdd(one_minus_beta2, hn::Sub(g, m), m), d, moment1 + i);
    } else if constexpr (kKind == OptimizerKind::Sgd) {
      p = hn::MulAdd(negative_step_size, g, p);
    } else {
      const auto buffer = hn::MulAdd(momentum, hn::LoadU(d, moment1 + i), g);
      auto direction = buffer;
      if constexpr (kKind == OptimizerKind::Nesterov) direction = hn::MulAdd(momentum, buffer, g);
      p = hn::MulAdd(negative_step_size, direction, p);
      hn::StoreU(buffer, d, moment1 + i);
    }
    store_master(i, p);
    return p;
  }

  FloatVector grad_scale, momentum, one_minus_beta1, beta2, one_minus_beta2, inv_sqrt_bias_correction2, epsilon;
  FloatVector negative_step_size, decay;
  const typename Grad::Stored* grad;
  typename Storage::Stored* param;
  float* master;
  std::uint16_t* remainder;
  float *moment1, *moment2;
};

template <typename Storage, typename Grad>
UpdateRun rest_of(const UpdateRun& run, std::size_t first) {
  UpdateRun rest = run;
  if (run.param != nullptr) rest.param += first * sizeof(typename Storage::Stored);
  rest.grad += first * sizeof(typename Grad::Stored);
  rest.master += first * (std::is_same_v<Storage, Bf16Remainder> ? sizeof(std::uint16_t) : sizeof(float));
  for (float*& moment : rest.moments) {
    if (moment != nullptr) moment += first;
  }
  rest.numel -= first;
  return rest;
}

// Whole vectors of 16-bit parameters, written past the cache: a step that does not read the parameter would with a
// plain store first fetch the line it overwrites, 2 bytes more per element. See docs/cpu-adam.md for what was measured.
// Requires: `param` is aligned to a vector. Returns the elements done, a multiple of 2 * kLanes.
template <typename Storage, typename Step>
std::size_t stream_pairs(const Step step, std::size_t numel) {
  const Floats d;
  const hn::ScalableTag<std::uint16_t> codes_tag;
  std::size_t i = 0;
  for (; i + 2 * kLanes <= numel; i += 2 * kLanes) {
    const auto low = codes(d, Storage(), step.update(i));
    const auto high = codes(d, Storage(), step.update(i + kLanes));
    hn::Stream(hn::Combine(codes_tag, high, low), codes_tag, step.param + i);
  }
  return i;
}

template <OptimizerKind kKind, typename Storage, typename Grad>
void update_run(const UpdateConstants& constants, const UpdateRun& run) {
  const Floats d;
  const VectorStep<kKind, Storage, Grad> step(constants, run);
  const std::size_t numel = run.numel;
  std::size_t i = 0;
  if constexpr (std::is_same_v<Storage, Bf16> || std::is_same_v<Storage, F16>) {
    if (reinterpret_cast<std::uintptr_t>(step.param) % (2 * kLanes * sizeof(*step.param)) == 0)
      i = stream_pairs<Storage>(step, numel);
  }
  for (; i + kLanes <= numel; i += kLanes) {
    const auto updated = step.update(i);
    if constexpr (step.kRemainder) {
      store(d, Bf16(), updated, step.param + i);
    } else if constexpr (!std::is_same_v<Storage, F32>) {
      store(d, Storage(), updated, step.param + i);
    }
  }
  if (i < numel) {
    constexpr auto kind = static_cast<std::size_t>(kKind);
    scalar::update_kernels().update[kind][Storage::kIndex][Grad::kIndex](constants, rest_of<Storage, Grad>(run, i));
  }
}

template <OptimizerKind kKind, typename Storage>
constexpr std::array<UpdateKernels::Update, kEncodings> kRow = {
    &update_run<kKind, Storage, F32>, &update_run<kKind, Storage, Bf16>, &update_run<kKind, Storage, F16>};

template <OptimizerKind kKind>
constexpr UpdateKernels::Storages kRows = {kRow<kKind, F32>, kRow<kKind, Bf16>, kRow<kKind, F16>,
                                           kRow<kKind, Bf16Remainder>};

constexpr UpdateKernels kKernels = {.update = {kRows<OptimizerKind::AdamW>, kRows<OptimizerKind::Adam>,
                                               kRows<OptimizerKind::Lion>, kRows<OptimizerKind::Momentum>,
                                               kRows<OptimizerKind::Nesterov>, kRows<OptimizerKind::Sgd>}};

}  // namespace

const UpdateKernels* update_kernels() {
  return &kKernels;
}

}  // namespace strata::cpu_adam::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // STRATA_IS_VECTOR_TARGET

#if HWY_ONCE
namespace strata::cpu_adam {

const UpdateKernels* simd_update_kernels(Isa isa) {
  return STRATA_ON_ISA(isa, update_kernels());
}

}  // namespace strata::cpu_adam
#endif  // HWY_ONCE
