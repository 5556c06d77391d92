#include "models/token_embedding.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>

#include "models/token_range.h"

namespace strata::models {

zero::GroupDecl TokenEmbedding::declare(const hf::ModelConfig& config) {
  return {"model.embed_tokens", {{"model.embed_tokens.weight", {config.vocab_size, config.hidden_size}, true}}};
}

TokenEmbedding::TokenEmbedding(const hf::ModelConfig& config, const DecoderOptions& options, std::size_t group)
    : groups_{group}, vocab_size_(config.vocab_size), compute_(compute_type(options)) {}

at::Tensor TokenEmbedding::forward(const zero::MicroBatch& batch, zero::LayerParams params) {
  check_token_range(batch.tokens, vocab_size_, "token");
  return at::embedding(params[0], batch.tokens).to(compute_);
}

std::vector<at::Tensor> TokenEmbedding::backward(const zero::MicroBatch& batch, const at::Tensor& grad_hidden) {
  return {at::embedding_dense_backward(grad_hidden.to(at::kFloat), batch.tokens, vocab_size_, /*padding_idx=*/-1,
                                       /*scale_grad_by_freq=*/false)};
}

}  // namespace strata::models
