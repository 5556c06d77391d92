#include "models/loss_head.h"

#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

#include "models/cross_entropy.h"
#include "models/rms_norm.h"
#include "models/token_range.h"

namespace strata::models {
namespace {

// Parameters in the order of groups(): the norm first, then the projection, whether tied or not.
const at::Tensor& norm_weight(zero::LayerParams params) {
  return params[0];
}
const at::Tensor& projection(zero::LayerParams params) {
  return params[1];
}

}  // namespace

zero::GroupDecl LossHead::declare(const hf::ModelConfig& config) {
  zero::GroupDecl group{"head", {{"model.norm.weight", {config.hidden_size}, false}}};
  if (!config.tie_word_embeddings) {
    group.params.push_back({"lm_head.weight", {config.vocab_size, config.hidden_size}, true});
  }
  return group;
}

LossHead::LossHead(const hf::ModelConfig& config, const DecoderOptions& options, std::vector<std::size_t> groups)
    : groups_(std::move(groups)),
      vocab_size_(config.vocab_size),
      epsilon_(config.rms_norm_eps),
      chunk_tokens_(options.loss_chunk_tokens),
      compute_(compute_type(options)) {}

LossHead::Result LossHead::loss(const zero::MicroBatch& batch, const at::Tensor& hidden, zero::LayerParams params,
                                Want want) {
  const at::Tensor labels = batch.labels.reshape({-1});
  check_token_range(labels.masked_fill(labels.eq(kIgnoredLabel), 0), vocab_size_, "label");
  const bool wants_grads = want == Want::LossAndGrads;
  // Only the norm is recorded; the projection and the loss differentiate themselves, chunk by chunk.
  const c10::AutoGradMode grad_mode(wants_grads);
  const at::Tensor input = hidden.detach().reshape({labels.numel(), -1}).requires_grad_(wants_grads);
  const at::Tensor norm = norm_weight(params).detach().requires_grad_(wants_grads);
  const at::Tensor normed = rms_norm(input, norm, epsilon_);
  CrossEntropy sums = chunked_cross_entropy(
      normed.detach(), projection(params).detach().to(compute_), labels, chunk_tokens_, want, batch.loss_scale,
      projection(params).requires_grad() ? WeightGrad::Wanted : WeightGrad::Frozen);
  Result result{.loss_sum = sums.loss_sum, .tokens = sums.tokens, .grad_hidden = {}, .grad_params = {}};
  if (wants_grads) {
    auto grads = torch::autograd::grad({normed}, {input, norm}, {std::exchange(sums.grad_hidden, {})});
    result.grad_hidden = grads[0].view_as(hidden);
    result.grad_params = {grads[1], sums.grad_weight};
  }
  return result;
}

at::Tensor LossHead::logits(const at::Tensor& hidden, zero::LayerParams params) {
  const c10::AutoGradMode no_grad(false);
  const at::Tensor normed = rms_norm(hidden, norm_weight(params), epsilon_);
  return at::mm(normed, projection(params).to(compute_).t()).to(at::kFloat);
}

}  // namespace strata::models
