// AdamW for one element: the definition that the CPU paths and the CUDA kernel share.
// C++17, because CUDA sources include it.
//
// [Note: AdamW arithmetic] The formula is torch.optim.AdamW's (decoupled decay, Loshchilov and Hutter, "Decoupled
// Weight Decay Regularization", algorithm 2; epsilon is added after bias correction):
//     param *= 1 - lr * weight_decay
//     exp_avg.lerp_(grad, 1 - beta1)
//     exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * grad^2
//     denom = sqrt(exp_avg_sq) / sqrt(1 - beta2^t) + eps
//     param -= lr / (1 - beta1^t) * exp_avg / denom
// Differences from torch, all in the last bits: every multiply-add is fused (torch fuses where its build does); the
// division by sqrt(1 - beta2^t) is a multiplication by its inverse, fused with the addition of eps; lerp is always
// fma(1 - beta1, g - m, m), whereas torch takes g - beta1 * (g - m) when 1 - beta1 >= 0.5.
// Each operation rounds once, to nearest even, and is named explicitly, so that no compiler may contract or reorder it.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/numeric.h"

namespace strata {

// What one step needs beside the element itself. Computed once per step, in double, then rounded to float.
struct AdamConstants {
  float grad_scale = 1;
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float inv_sqrt_bias_correction2 = 1;
  float epsilon = 0;
  float negative_step_size = 0;  // -lr / (1 - beta1^t)
  float decay_factor = 1;        // 1 - lr * weight_decay; elements without decay use 1
};

// `Context` has the members of StepContext (core/shard_optimizer.h), which is C++20 and so is not named here.
// A pure function of its argument: bias corrections come from `step` itself, never from a running product.
// Requires: context.step >= 1, betas in [0, 1).
template <typename Context>
AdamConstants adam_constants(const Context& context) {
  const double step = static_cast<double>(context.step);
  const double bias_correction1 = 1.0 - std::pow(context.beta1, step);
  const double bias_correction2 = 1.0 - std::pow(context.beta2, step);
  AdamConstants constants;
  constants.grad_scale = context.grad_scale;
  constants.one_minus_beta1 = static_cast<float>(1.0 - context.beta1);
  constants.beta2 = static_cast<float>(context.beta2);
  constants.one_minus_beta2 = static_cast<float>(1.0 - context.beta2);
  constants.inv_sqrt_bias_correction2 = static_cast<float>(1.0 / std::sqrt(bias_correction2));
  constants.epsilon = static_cast<float>(context.epsilon);
  constants.negative_step_size = static_cast<float>(-context.learning_rate / bias_correction1);
  constants.decay_factor = static_cast<float>(1.0 - context.learning_rate * context.weight_decay);
  return constants;
}

STRATA_HOST_DEVICE inline float exact_fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

// Under -fmad=false and -ffp-contract=off the plain operators below round once each; nvcc's intrinsics say so in the
// source.
STRATA_HOST_DEVICE inline float exact_mul(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

STRATA_HOST_DEVICE inline float exact_div(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

STRATA_HOST_DEVICE inline float exact_sqrt(float a) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(a);
#else
  return std::sqrt(a);
#endif
}

// One element's optimizer state; `master` is the parameter itself in fp32 training.
struct AdamElement {
  float master;
  float exp_avg;
  float exp_avg_sq;
};

// The update. `grad` is the stored gradient, before grad_scale. See [Note: AdamW arithmetic].
STRATA_HOST_DEVICE inline AdamElement adam_update(const AdamConstants& c, AdamElement e, float grad,
                                                  float decay_factor) {
  const float g = exact_mul(grad, c.grad_scale);
  e.exp_avg = exact_fma(c.one_minus_beta1, g - e.exp_avg, e.exp_avg);
  e.exp_avg_sq = exact_fma(exact_mul(c.one_minus_beta2, g), g, exact_mul(c.beta2, e.exp_avg_sq));
  const float denom = exact_fma(exact_sqrt(e.exp_avg_sq), c.inv_sqrt_bias_correction2, c.epsilon);
  const float decayed = exact_mul(e.master, decay_factor);
  e.master = exact_fma(c.negative_step_size, exact_div(e.exp_avg, denom), decayed);
  return e;
}

}  // namespace strata
