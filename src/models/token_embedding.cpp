#include "models/token_embedding.h"

#include <ATen/ops/_unique.h>
#include <ATen/ops/embedding.h>

#include "models/token_range.h"

namespace strata::models {

zero::GroupDecl TokenEmbedding::declare(const hf::ModelConfig& config) {
  return {"model.embed_tokens", {{"model.embed_tokens.weight", {config.vocab_size, config.hidden_size}, true}}};
}

TokenEmbedding::TokenEmbedding(const hf::ModelConfig& config, const DecoderOptions& options, std::size_t group)
    : groups_{group}, vocab_size_(config.vocab_size), compute_(compute_type(options)) {}

at::Tensor TokenEmbedding::forward(const zero::MicroBatch& batch, zero::LayerParams params) {
  check_token_range(batch.tokens, vocab_size_, "token");
  // Each row is fetched once and repeated in fp32, so that autograd adds the gradients of a token that occurs many
  // times in fp32 and rounds their sum once. A plain lookup in a 16-bit table would add them in 16 bits.
  const auto [ids, positions] = at::_unique(batch.tokens, /*sorted=*/true, /*return_inverse=*/true);
  const at::Tensor rows = at::embedding(params[0], ids).to(at::kFloat);
  return at::embedding(rows, positions).to(compute_);
}

}  // namespace strata::models
