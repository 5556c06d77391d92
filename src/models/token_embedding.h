// First layer of a decoder: token ids to hidden states.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hf/model_config.h"
#include "models/decoder_options.h"
#include "zero/layer.h"

namespace strata::models {

class TokenEmbedding final : public zero::EmbeddingLayer {
 public:
  static zero::GroupDecl declare(const hf::ModelConfig& config);

  TokenEmbedding(const hf::ModelConfig& config, const DecoderOptions& options, std::size_t group);

  const std::vector<std::size_t>& groups() const override { return groups_; }
  // Throws: DataError for a token outside the vocabulary.
  at::Tensor forward(const zero::MicroBatch& batch, zero::LayerParams params) override;
  // Rows of a token that occurs many times are added in fp32, in position order, whatever the group's type.
  std::vector<at::Tensor> backward(const zero::MicroBatch& batch, const at::Tensor& grad_hidden) override;

 private:
  std::vector<std::size_t> groups_;
  std::int64_t vocab_size_;
  at::ScalarType compute_;
};

// [vocab, H] in fp32: row v is the sum of the rows i of `rows` [N, H] where tokens[i] is v, in the order of i where
// torch is set to be deterministic. Any device.
at::Tensor sum_rows_by_token(const at::Tensor& rows, const at::Tensor& tokens, std::int64_t vocab);

}  // namespace strata::models
