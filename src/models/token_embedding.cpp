#include "models/token_embedding.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/zeros.h>

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

// [Note: gradient of the embedding] For up to 3,072 positions the kernel that torch 2.11 has for
// embedding_dense_backward on a GPU takes the next 1,024 indices into shared memory without a barrier before: gradients
// of a token that occurs again may be lost, also in deterministic mode (pytorch pull request 187687). index_put_ sorts,
// and adds the rows of a token one after the other.
at::Tensor sum_rows_by_token(const at::Tensor& rows, const at::Tensor& tokens, std::int64_t vocab) {
  at::Tensor sums = at::zeros({vocab, rows.size(-1)}, rows.options());
  return sums.index_put_({tokens.reshape({-1})}, rows.reshape({-1, rows.size(-1)}), /*accumulate=*/true);
}

std::vector<at::Tensor> TokenEmbedding::backward(const zero::MicroBatch& batch, const at::Tensor& grad_hidden) {
  const at::Tensor rows = grad_hidden.to(at::kFloat);
  if (rows.is_cuda()) return {sum_rows_by_token(rows, batch.tokens, vocab_size_)};
  return {at::embedding_dense_backward(rows, batch.tokens, vocab_size_, /*padding_idx=*/-1,
                                       /*scale_grad_by_freq=*/false)};
}

}  // namespace strata::models
