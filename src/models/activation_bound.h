// How much memory one training micro-batch of a decoder takes beside weights and gradients of the engine.
#pragma once

#include <cstdint>

#include "hf/model_config.h"
#include "models/decoder_options.h"

namespace strata::models {

class ActivationBound {
 public:
  ActivationBound(const hf::ModelConfig& config, const DecoderOptions& options) : config_(config), options_(options) {}

  // As zero::Model::activation_bytes().
  std::uint64_t bytes(std::int64_t sequences, std::int64_t tokens_each) const;

 private:
  hf::ModelConfig config_;
  DecoderOptions options_;
};

}  // namespace strata::models
