// Last layer of a decoder: final norm, output projection and loss.
#pragma once

#include <cstdint>
#include <vector>

#include "hf/model_config.h"
#include "models/decoder_options.h"
#include "zero/layer.h"

namespace strata::models {

class LossHead final : public zero::LossLayer {
 public:
  // model.norm.weight and, unless tied to the embedding, lm_head.weight.
  static zero::GroupDecl declare(const hf::ModelConfig& config);

  // `groups`: the head's own group and, with tied embeddings, the embedding's.
  LossHead(const hf::ModelConfig& config, const DecoderOptions& options, std::vector<std::size_t> groups);

  const std::vector<std::size_t>& groups() const override { return groups_; }
  // The gradient of the projection is fp32 whatever the group's type.
  // Throws: DataError for a label outside the vocabulary.
  Result loss(const zero::MicroBatch& batch, const at::Tensor& hidden, zero::LayerParams params, Want want) override;
  at::Tensor logits(const at::Tensor& hidden, zero::LayerParams params) override;

 private:
  std::vector<std::size_t> groups_;
  std::int64_t vocab_size_;
  double epsilon_;
  std::int64_t chunk_tokens_;
  at::ScalarType compute_;
};

}  // namespace strata::models
