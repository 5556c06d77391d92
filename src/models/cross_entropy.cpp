#include "models/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "core/error.h"

namespace strata::models {
namespace {

using Want = zero::LossLayer::Want;

// Token losses of one chunk, [n, 1] fp32, zero where there is no label. Overwrites `logits` [n, V] with
// d(loss_scale * loss)/d(logits) when gradients are wanted. In place throughout: [n, V] is the largest tensor of a
// step.
at::Tensor softmax_cross_entropy_(at::Tensor& logits, const at::Tensor& labels, Want want, double loss_scale) {
  const at::Tensor labelled = labels.ne(kIgnoredLabel).unsqueeze(1);
  const at::Tensor index = labels.clamp_min(0).unsqueeze(1);
  const at::Tensor at_label = logits.gather(1, index);
  const at::Tensor largest = logits.amax(1, /*keepdim=*/true);
  logits.sub_(largest).exp_();
  const at::Tensor sum = logits.sum(1, /*keepdim=*/true);
  const at::Tensor losses = (sum.log() + largest - at_label).masked_fill_(labelled.logical_not(), 0);
  if (want == Want::LossAndGrads) {
    // loss_scale * (softmax - onehot), without a pass of its own for the scale.
    logits.div_(sum / loss_scale).scatter_add_(1, index, sum.new_full({1, 1}, -loss_scale).expand_as(index));
    logits.masked_fill_(labelled.logical_not(), 0);
  }
  return losses;
}

double add_in_position_order(const at::Tensor& losses, double sum) {
  const at::Tensor host = losses.cpu().contiguous();
  const float* values = host.const_data_ptr<float>();
  for (std::int64_t i = 0; i < host.numel(); ++i) sum += static_cast<double>(values[i]);
  return sum;
}

// accumulator += gradient^T @ hidden. In fp32 the product is added as it is formed; in 16-bit types it exists rounded
// first.
void accumulate_weight_gradient(at::Tensor& accumulator, const at::Tensor& gradient, const at::Tensor& hidden) {
  if (hidden.scalar_type() == at::kFloat) {
    accumulator.addmm_(gradient.t(), hidden);
  } else {
    accumulator.add_(at::mm(gradient.t(), hidden));
  }
}

}  // namespace

CrossEntropy chunked_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                   std::int64_t chunk, Want want, double loss_scale, WeightGrad weight_grad) {
  STRATA_EXPECTS(chunk > 0, "the loss chunk must hold at least one position");
  const c10::AutoGradMode no_grad(false);
  CrossEntropy result;
  if (want == Want::LossAndGrads) {
    result.grad_hidden = at::zeros_like(hidden);
    if (weight_grad == WeightGrad::Wanted) {
      result.grad_weight = at::zeros(weight.sizes(), weight.options().dtype(at::kFloat));
    }
  }
  const std::int64_t positions = hidden.size(0);
  for (std::int64_t first = 0; first < positions; first += chunk) {
    const std::int64_t n = std::min(chunk, positions - first);
    const at::Tensor chunk_labels = labels.narrow(0, first, n);
    const std::int64_t labelled = chunk_labels.ne(kIgnoredLabel).sum().item().toLong();
    if (labelled == 0) continue;
    const at::Tensor chunk_hidden = hidden.narrow(0, first, n);
    at::Tensor logits = at::mm(chunk_hidden, weight.t()).to(at::kFloat);
    const at::Tensor losses = softmax_cross_entropy_(logits, chunk_labels, want, loss_scale);
    result.loss_sum = add_in_position_order(losses, result.loss_sum);
    result.tokens += labelled;
    if (want == Want::Loss) continue;
    const at::Tensor gradient = logits.to(hidden.scalar_type());
    at::Tensor grad_rows = result.grad_hidden.narrow(0, first, n);
    at::mm_out(grad_rows, gradient, weight);
    if (weight_grad == WeightGrad::Wanted) accumulate_weight_gradient(result.grad_weight, gradient, chunk_hidden);
  }
  return result;
}

}  // namespace strata::models
