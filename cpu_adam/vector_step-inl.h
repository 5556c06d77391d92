// One step on a vector of elements, and the moments it works on, compiled once per Highway target; equal to
// core/optimizer_math.h in every bit, because it performs the same correctly rounded operations in the same order per
// element.
#if defined(STRATA_VECTOR_STEP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef STRATA_VECTOR_STEP_INL_H
#undef STRATA_VECTOR_STEP_INL_H
#else
#define STRATA_VECTOR_STEP_INL_H
#endif

#include <type_traits>

#include "cpu_adam/coder-inl.h"
#include "cpu_adam/update_kernels.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu_adam::HWY_NAMESPACE {

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
        remainder(reinterpret_cast<std::uint16_t*>(run.master)) {}

  // The same step `first` elements further.
  HWY_INLINE VectorStep shifted(std::size_t first) const {
    VectorStep step = *this;
    step.grad += first;
    step.param += first;
    step.master += first;
    step.remainder += first;
    return step;
  }

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
  template <typename Moments>
  HWY_INLINE FloatVector update(std::size_t i, Moments& moments) const {
    const Floats d;
    moments.start(i);
    auto g = hn::Mul(load(d, Grad(), grad + i), grad_scale);
    auto p = load_master(i);
    if constexpr (!decay_is_decoupled(kKind)) g = hn::MulAdd(decay, p, g);
    if constexpr (moments_of(kKind) == 2) {
      auto m = moments.load(0, i);
      m = hn::MulAdd(one_minus_beta1, hn::Sub(g, m), m);
      auto v = moments.load(1, i);
      v = hn::MulAdd(hn::Mul(one_minus_beta2, g), g, hn::Mul(beta2, v));
      const auto denom = hn::MulAdd(hn::Sqrt(v), inv_sqrt_bias_correction2, epsilon);
      if constexpr (kKind == OptimizerKind::AdamW) p = hn::Mul(p, decay);
      p = hn::MulAdd(negative_step_size, hn::Div(m, denom), p);
      moments.store(0, i, m);
      moments.store(1, i, v);
    } else if constexpr (kKind == OptimizerKind::Lion) {
      const auto m = moments.load(0, i);
      const auto direction = sign(hn::MulAdd(one_minus_beta1, hn::Sub(g, m), m));
      p = hn::MulAdd(negative_step_size, direction, hn::Mul(p, decay));
      moments.store(0, i, hn::MulAdd(one_minus_beta2, hn::Sub(g, m), m));
    } else if constexpr (kKind == OptimizerKind::Sgd) {
      p = hn::MulAdd(negative_step_size, g, p);
    } else {
      const auto buffer = hn::MulAdd(momentum, moments.load(0, i), g);
      auto direction = buffer;
      if constexpr (kKind == OptimizerKind::Nesterov) direction = hn::MulAdd(momentum, buffer, g);
      p = hn::MulAdd(negative_step_size, direction, p);
      moments.store(0, i, buffer);
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
};

// Moments as they lie in memory: start(i) announces the elements [i, i + kLanes), then each moment k that the kind has
// is loaded and stored once.
struct Fp32Moments {
  explicit Fp32Moments(const UpdateRun& run) : moments{run.moments[0], run.moments[1]} {}
  HWY_INLINE void start(std::size_t) {}
  HWY_INLINE FloatVector load(std::size_t k, std::size_t i) const { return hn::LoadU(Floats(), moments[k] + i); }
  HWY_INLINE void store(std::size_t k, std::size_t i, FloatVector value) {
    hn::StoreU(value, Floats(), moments[k] + i);
  }

  float* moments[2];
};

// bf16, rounded by [Note: random words].
struct Bf16Moments {
  explicit Bf16Moments(const CodedRun& run)
      : codes{reinterpret_cast<std::uint16_t*>(run.codes[0]), reinterpret_cast<std::uint16_t*>(run.codes[1])},
        first_key(hn::Set(Bits(), run.key.first)),
        second_key(hn::Set(Bits(), run.key.second)),
        first_index(hn::Iota(Bits(), run.first_index)),
        word(first_index) {}
  HWY_INLINE void start(std::size_t i) {
    word = random_words(hn::Add(first_index, hn::Set(Bits(), static_cast<std::uint32_t>(i))), first_key, second_key);
  }
  HWY_INLINE FloatVector load(std::size_t k, std::size_t i) const {
    return HWY_NAMESPACE::load(Floats(), Bf16(), codes[k] + i);
  }
  HWY_INLINE void store(std::size_t k, std::size_t i, FloatVector value) {
    store_rounded(value, k == 0 ? hn::And(word, hn::Set(Bits(), 0xffffu)) : hn::ShiftRight<16>(word), codes[k] + i);
  }

  std::uint16_t* codes[2];
  BitsVector first_key, second_key, first_index, word;
};

// Writes 16-bit parameters; an fp32 parameter is the master and is written already.
template <typename Storage, typename Step>
HWY_INLINE void store_param(const Step& step, std::size_t i, FloatVector updated) {
  if constexpr (std::is_same_v<Storage, Bf16Remainder>) {
    store(Floats(), Bf16(), updated, step.param + i);
  } else if constexpr (!std::is_same_v<Storage, F32>) {
    store(Floats(), Storage(), updated, step.param + i);
  }
}

// [Note: streamed parameters] Whole vectors of 16-bit parameters are written past the cache where they are aligned: a
// step that does not read the parameter would with a plain store first fetch the line it overwrites, 2 bytes more per
// element. 7 to 9 % faster in the median of 9 interleaved rounds on a two-core Zen 3 guest (AVX2), 2 to 5 % in four
// series of 31 rounds on a Zen 5 guest (AVX-512). Tried there and left out: streaming masters and moments too (4 to 8 %
// slower), software prefetch 256 elements ahead (3 % faster in a loop of its own, 5 % slower in this one), ranges of 16
// Ki or 1 Mi elements (no better than 64 Ki).
template <typename Storage, typename Step>
bool can_stream(const Step& step) {
  if constexpr (std::is_same_v<Storage, Bf16> || std::is_same_v<Storage, F16>) {
    return reinterpret_cast<std::uintptr_t>(step.param) % (2 * kLanes * sizeof(*step.param)) == 0;
  } else {
    return false;
  }
}

// Updates the elements [i, i + 2 * kLanes). Requires for kStream: can_stream, and i is a multiple of 2 * kLanes.
template <typename Storage, bool kStream, typename Step, typename Moments>
HWY_INLINE void update_pair(const Step& step, Moments& moments, std::size_t i) {
  const auto low = step.update(i, moments);
  const auto high = step.update(i + kLanes, moments);
  if constexpr (kStream) {
    const hn::ScalableTag<std::uint16_t> codes_tag;
    hn::Stream(hn::Combine(codes_tag, codes(Floats(), Storage(), high), codes(Floats(), Storage(), low)), codes_tag,
               step.param + i);
  } else {
    store_param<Storage>(step, i, low);
    store_param<Storage>(step, i + kLanes, high);
  }
}

// As many whole vectors as there are. Returns the elements done.
template <typename Storage, typename Step, typename Moments>
HWY_INLINE std::size_t update_vectors(const Step step, Moments& moments, std::size_t numel) {
  std::size_t i = 0;
  if constexpr (std::is_same_v<Storage, Bf16> || std::is_same_v<Storage, F16>) {
    if (can_stream<Storage>(step)) {
      for (; i + 2 * kLanes <= numel; i += 2 * kLanes) update_pair<Storage, true>(step, moments, i);
    }
  }
  for (; i + kLanes <= numel; i += kLanes) store_param<Storage>(step, i, step.update(i, moments));
  return i;
}

}  // namespace strata::cpu_adam::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
