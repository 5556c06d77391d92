// The update of one element for every optimizer: the definition that the CPU paths and the CUDA kernel share.
// C++17, because CUDA sources include it.
//
// [Note: optimizer arithmetic] In all formulas g = grad * grad_scale, and p is the fp32 master.
//
// AdamW and Adam are torch.optim.AdamW and torch.optim.Adam (Loshchilov and Hutter, "Decoupled Weight Decay
// Regularization", algorithm 2; epsilon is added after bias correction):
//     AdamW: p *= 1 - lr * weight_decay              Adam: g += weight_decay * p
//     exp_avg.lerp_(g, 1 - beta1)
//     exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * g^2
//     denom = sqrt(exp_avg_sq) / sqrt(1 - beta2^t) + eps
//     p -= lr / (1 - beta1^t) * exp_avg / denom
// Differences from torch, all in the last bits: every multiply-add is fused (torch fuses where its build does); the
// division by sqrt(1 - beta2^t) is a multiplication by its inverse, fused with the addition of eps; lerp is always
// fma(1 - beta1, g - m, m), whereas torch takes g - beta1 * (g - m) when 1 - beta1 >= 0.5.
//
// Momentum, Nesterov and Sgd are torch.optim.SGD with dampening 0. A buffer that starts at zero gives torch's first
// step, which sets it to the gradient:
//     g += weight_decay * p
//     buffer = momentum * buffer + g
//     p -= lr * (Sgd: g, Momentum: buffer, Nesterov: g + momentum * buffer)
//
// Lion is algorithm 2 of Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023 (arXiv:2302.06675):
//     p -= lr * (sign(beta1 * exp_avg + (1 - beta1) * g) + weight_decay * p)
//     exp_avg = beta2 * exp_avg + (1 - beta2) * g
// with both averages as lerp above, and decay as the factor 1 - lr * weight_decay, as for AdamW. sign(0) = 0.
//
// Each operation rounds once, to nearest even, and is named explicitly, so that no compiler may contract or reorder it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/numeric.h"

namespace strata {

enum class OptimizerKind : std::uint8_t { AdamW, Adam, Lion, Momentum, Nesterov, Sgd };
inline constexpr std::size_t kOptimizerKinds = 6;

// Whether decay multiplies the parameter (AdamW, Lion) or is added to the gradient (the others).
STRATA_HOST_DEVICE constexpr bool decay_is_decoupled(OptimizerKind kind) {
  return kind == OptimizerKind::AdamW || kind == OptimizerKind::Lion;
}

STRATA_HOST_DEVICE constexpr std::size_t moments_of(OptimizerKind kind) {
  return kind == OptimizerKind::Sgd ? 0 : kind == OptimizerKind::AdamW || kind == OptimizerKind::Adam ? 2 : 1;
}

// What one step needs beside the element itself. Computed once per step, in double, then rounded to float.
struct UpdateConstants {
  float grad_scale = 1;
  float momentum = 0;  // beta1 of the context
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float inv_sqrt_bias_correction2 = 1;
  float epsilon = 0;
  float negative_step_size = 0;  // AdamW and Adam: -lr / (1 - beta1^t); the others: -lr
  // The `decay` of elements with weight decay and of those without: the factor of the parameter where decay is
  // decoupled, else the factor of what is added to the gradient.
  float decay = 1;
  float no_decay = 1;
};

// `Context` has the members of StepContext (core/shard_optimizer.h), which is C++20 and so is not named here.
// A pure function of its arguments: bias corrections come from `step` itself, never from a running product.
// Requires: context.step >= 1, betas in [0, 1).
template <typename Context>
UpdateConstants update_constants(OptimizerKind kind, const Context& context) {
  const bool is_adam = moments_of(kind) == 2;
  const double step = static_cast<double>(context.step);
  const double bias_correction1 = is_adam ? 1.0 - std::pow(context.beta1, step) : 1.0;
  const double bias_correction2 = is_adam ? 1.0 - std::pow(context.beta2, step) : 1.0;
  UpdateConstants constants;
  constants.grad_scale = context.grad_scale;
  constants.momentum = static_cast<float>(context.beta1);
  constants.one_minus_beta1 = static_cast<float>(1.0 - context.beta1);
  constants.beta2 = static_cast<float>(context.beta2);
  constants.one_minus_beta2 = static_cast<float>(1.0 - context.beta2);
  constants.inv_sqrt_bias_correction2 = static_cast<float>(1.0 / std::sqrt(bias_correction2));
  constants.epsilon = static_cast<float>(context.epsilon);
  constants.negative_step_size = static_cast<float>(-context.learning_rate / bias_correction1);
  constants.decay = static_cast<float>(decay_is_decoupled(kind) ? 1.0 - context.learning_rate * context.weight_decay
                                                                : context.weight_decay);
  constants.no_decay = decay_is_decoupled(kind) ? 1.0f : 0.0f;
  return constants;
}

// -1, 0 or 1 with zero's own sign; NaN stays NaN.
STRATA_HOST_DEVICE inline float sign_of(float a) {
  return a > 0 ? 1.0f : a < 0 ? -1.0f : a;
}

// One element's optimizer state; `master` is the parameter itself in fp32 training. `moment1` is exp_avg or the
// momentum buffer, `moment2` is exp_avg_sq; a kind without them leaves them alone.
struct UpdateElement {
  float master;
  float moment1;
  float moment2;
};

// The update. `grad` is the stored gradient, before grad_scale; `decay` is one of the two in the constants.
// See [Note: optimizer arithmetic].
template <OptimizerKind kKind>
STRATA_HOST_DEVICE inline UpdateElement update_element(const UpdateConstants& c, UpdateElement e, float grad,
                                                       float decay) {
  float g = exact_mul(grad, c.grad_scale);
  if constexpr (!decay_is_decoupled(kKind)) g = exact_fma(decay, e.master, g);
  if constexpr (moments_of(kKind) == 2) {
    e.moment1 = exact_fma(c.one_minus_beta1, g - e.moment1, e.moment1);
    e.moment2 = exact_fma(exact_mul(c.one_minus_beta2, g), g, exact_mul(c.beta2, e.moment2));
    const float denom = exact_fma(exact_sqrt(e.moment2), c.inv_sqrt_bias_correction2, c.epsilon);
    if constexpr (kKind == OptimizerKind::AdamW) e.master = exact_mul(e.master, decay);
    e.master = exact_fma(c.negative_step_size, exact_div(e.moment1, denom), e.master);
  } else if constexpr (kKind == OptimizerKind::Lion) {
    const float direction = sign_of(exact_fma(c.one_minus_beta1, g - e.moment1, e.moment1));
    e.master = exact_fma(c.negative_step_size, direction, exact_mul(e.master, decay));
    e.moment1 = exact_fma(c.one_minus_beta2, g - e.moment1, e.moment1);
  } else if constexpr (kKind == OptimizerKind::Sgd) {
    e.master = exact_fma(c.negative_step_size, g, e.master);
  } else {
    e.moment1 = exact_fma(c.momentum, e.moment1, g);
    const float direction = kKind == OptimizerKind::Nesterov ? exact_fma(c.momentum, e.moment1, g) : e.moment1;
    e.master = exact_fma(c.negative_step_size, direction, e.master);
  }
  return e;
}

}  // namespace strata
