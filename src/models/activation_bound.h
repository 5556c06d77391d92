// How much memory one training micro-batch of a decoder takes beside gathered weights and flat gradients.
#pragma once

#include <cstdint>

#include "hf/model_config.h"
#include "models/decoder_options.h"

namespace strata::models {

// The largest of a few moments of a step, each the sum of the tensors that live then. [Note: activation bound] in the
// source lists them. For the host tests hold it against the measured peak; for a GPU
// (DecoderOptions::gpu_multiprocessors) it follows from what torch's sources allocate, and none has measured it.
// Immutable, thread-safe.
class ActivationBound {
 public:
  ActivationBound(const hf::ModelConfig& config, const DecoderOptions& options) : config_(config), options_(options) {}

  // As zero::Model::activation_bytes(). On the host it depends on at::get_num_threads(): attention has scratch for each
  // thread.
  std::uint64_t bytes(std::int64_t sequences, std::int64_t tokens_each) const;
  // As zero::Model::open_micro_batch_bytes().
  std::uint64_t open_micro_batch_bytes(std::int64_t sequences, std::int64_t tokens_each) const;
  // As zero::Model::graph_bytes().
  std::uint64_t graph_bytes(std::int64_t sequences, std::int64_t tokens_each) const;

 private:
  hf::ModelConfig config_;
  DecoderOptions options_;
};

}  // namespace strata::models
