// Cross-entropy of a linear output layer whose logits never exist all at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "zero/layer.h"

namespace strata::models {

inline constexpr std::int64_t kIgnoredLabel = -100;

struct CrossEntropy {
  double loss_sum = 0;      // sum of token losses, added in double in position order
  std::int64_t tokens = 0;  // positions with a label
  at::Tensor grad_hidden;   // [N, H] in hidden's type, zero where there is no label; undefined unless asked for
  at::Tensor grad_weight;   // [V, H] fp32; undefined unless asked for
};

enum class WeightGrad : std::uint8_t { Wanted, Frozen };  // where gradients are asked for

// Logits hidden @ weight^T of `chunk` positions at a time; the softmax is taken in fp32. Chunks without labels are
// skipped. hidden [N, H] and weight [V, H] share one type; labels [N] int64, kIgnoredLabel where no loss is taken.
// Gradients are of loss_scale * loss_sum: the scale multiplies while they are still fp32. Records nothing for autograd.
// Requires: chunk > 0.
CrossEntropy chunked_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                   std::int64_t chunk, zero::LossLayer::Want want, double loss_scale = 1,
                                   WeightGrad weight_grad = WeightGrad::Wanted);

}  // namespace strata::models
