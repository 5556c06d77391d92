#include "models/decoder.h"

#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "models/activation_bound.h"
#include "models/decoder_block.h"
#include "models/freeze.h"
#include "models/loss_head.h"
#include "models/token_embedding.h"

namespace strata::models {
namespace {

void check(const hf::ModelConfig& config, const DecoderOptions& options) {
  if (config.head_dim <= 0 || config.head_dim % 2 != 0) {
    throw DataError("head_dim is " + std::to_string(config.head_dim) +
                    ": rotary embeddings need a positive even number");
  }
  if (config.num_key_value_heads <= 0 || config.num_attention_heads % config.num_key_value_heads != 0) {
    throw DataError("num_attention_heads " + std::to_string(config.num_attention_heads) +
                    " is not a multiple of num_key_value_heads " + std::to_string(config.num_key_value_heads));
  }
  if (options.group_type != at::kFloat && options.group_type != at::kBFloat16 && options.group_type != at::kHalf) {
    throw ConfigError("weights of a decoder are gathered in fp32, bf16 or fp16, not in another type");
  }
  if (options.loss_chunk_tokens <= 0) {
    throw ConfigError("the loss chunk is " + std::to_string(options.loss_chunk_tokens) +
                      " positions: it must be at least 1");
  }
}

class Decoder final : public zero::Model {
 public:
  Decoder(const hf::ModelConfig& config, const DecoderOptions& options)
      : bound_(config, options), embedding_(config, options, 0), head_(config, options, head_groups(config)) {
    groups_.push_back(TokenEmbedding::declare(config));
    const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
    blocks_.reserve(layers);
    for (std::size_t i = 0; i < layers; ++i) {
      groups_.push_back(DecoderBlock::declare(config, i));
      blocks_.emplace_back(config, options, i, i + 1);
    }
    groups_.push_back(LossHead::declare(config));
    freeze(groups_, options.frozen_parameters);
  }

  const std::vector<zero::GroupDecl>& groups() const override { return groups_; }
  zero::EmbeddingLayer& embedding() override { return embedding_; }
  std::size_t blocks() const override { return blocks_.size(); }
  zero::BlockLayer& block(std::size_t index) override { return blocks_.at(index); }
  zero::LossLayer& head() override { return head_; }
  std::uint64_t activation_bytes(std::int64_t sequences, std::int64_t tokens_each) const override {
    return bound_.bytes(sequences, tokens_each);
  }
  std::uint64_t open_micro_batch_bytes(std::int64_t sequences, std::int64_t tokens_each) const override {
    return bound_.open_micro_batch_bytes(sequences, tokens_each);
  }
  std::uint64_t graph_bytes(std::int64_t sequences, std::int64_t tokens_each) const override {
    return bound_.graph_bytes(sequences, tokens_each);
  }

 private:
  static std::vector<std::size_t> head_groups(const hf::ModelConfig& config) {
    const std::size_t own = static_cast<std::size_t>(config.num_hidden_layers) + 1;
    return config.tie_word_embeddings ? std::vector<std::size_t>{own, 0} : std::vector<std::size_t>{own};
  }

  ActivationBound bound_;
  std::vector<zero::GroupDecl> groups_;
  TokenEmbedding embedding_;
  std::vector<DecoderBlock> blocks_;
  LossHead head_;
};

}  // namespace

std::unique_ptr<zero::Model> make_decoder(const hf::ModelConfig& config, const DecoderOptions& options) {
  check(config, options);
  return std::make_unique<Decoder>(config, options);
}

}  // namespace strata::models
