// A layer in the middle of a decoder: pre-norm attention, then SwiGLU, each added to the residual stream.
#pragma once

#include <cstddef>
#include <vector>

#include "hf/model_config.h"
#include "models/decoder_options.h"
#include "zero/layer.h"

namespace strata::models {

class DecoderBlock final : public zero::BlockLayer {
 public:
  // Parameters of block `index`, in the order in which forward uses them.
  static zero::GroupDecl declare(const hf::ModelConfig& config, std::size_t index);

  DecoderBlock(const hf::ModelConfig& config, const DecoderOptions& options, std::size_t index, std::size_t group);

  const std::vector<std::size_t>& groups() const override { return groups_; }
  at::Tensor forward(const zero::MicroBatch& batch, const at::Tensor& hidden, zero::LayerParams params) override;

 private:
  struct Weights;
  Weights bind(zero::LayerParams params) const;
  // x [N, H] for B sequences of T tokens, N = B T; both return [N, H].
  at::Tensor attention(const at::Tensor& x, const zero::MicroBatch& batch, const Weights& weights);
  at::Tensor swiglu(const at::Tensor& x, const Weights& weights) const;
  at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const;

  hf::ModelConfig config_;
  std::int64_t window_;
  std::vector<std::size_t> groups_;
  at::ScalarType compute_;
  at::Tensor frequencies_;  // where the block last computed
};

}  // namespace strata::models
