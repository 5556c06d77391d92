// Layers and models over ATen, as the torch LayerCompute drives them. Models implement these; nothing here knows memory
// tiers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zero/group_decl.h"

namespace strata::zero {

// What compute reads beside weights. B = sequences, T = tokens of each (right-padded), both of this micro-batch.
struct MicroBatch {
  at::Tensor tokens;      // [B, T] int64
  at::Tensor labels;      // [B, T] int64: what position t must predict (already shifted), -100 where no loss is taken
  double loss_scale = 1;  // gradients are of loss_scale * loss_sum
};

// Parameters of one layer, in the order of Layer::groups() and of each group's params. They view gathered memory in the
// group's type; they are leaves that require grad unless they are frozen.
using LayerParams = std::span<const at::Tensor>;

// Names the parameter groups it uses by index into Model::groups(). A group may be named by several layers (tied
// embedding).
class Layer {
 public:
  virtual ~Layer() = default;
  virtual const std::vector<std::size_t>& groups() const = 0;
};

// First layer: tokens to hidden states.
class EmbeddingLayer : public Layer {
 public:
  // Returns [B, T, H] in the activation type.
  virtual at::Tensor forward(const MicroBatch& batch, LayerParams params) = 0;
  // Gradients of the parameters, in their order, fp32 or the group's type, for grad_hidden [B, T, H]; undefined is
  // zero. Reads no parameter, so that the layer's groups need not be gathered again.
  virtual std::vector<at::Tensor> backward(const MicroBatch& batch, const at::Tensor& grad_hidden) = 0;
};

// A layer in the middle: [B, T, H] to [B, T, H]. Differentiable by autograd in hidden and params.
class BlockLayer : public Layer {
 public:
  virtual at::Tensor forward(const MicroBatch& batch, const at::Tensor& hidden, LayerParams params) = 0;
};

// Last layer: final norm, head and loss in one visit. Logits exist for one chunk of positions at a time.
class LossLayer : public Layer {
 public:
  struct Result {
    double loss_sum = 0;      // sum of token losses over unmasked positions
    std::int64_t tokens = 0;  // unmasked positions
    at::Tensor grad_hidden;   // [B, T, H]: d(loss_scale * loss_sum)/d(hidden); undefined unless asked for
    // d(loss_scale * loss_sum)/d(param), fp32 or the group's type; likewise. One that is undefined is zero, or frozen.
    std::vector<at::Tensor> grad_params;
  };
  enum class Want : std::uint8_t { Loss, LossAndGrads };
  virtual Result loss(const MicroBatch& batch, const at::Tensor& hidden, LayerParams params, Want want) = 0;
  // Logits in fp32 [N, V] for hidden states [N, H]; for generation and tests.
  virtual at::Tensor logits(const at::Tensor& hidden, LayerParams params) = 0;
};

// A decoder: [embedding] [blocks...] [final norm + head + loss]. Not thread-safe: one thread runs its layers.
class Model {
 public:
  virtual ~Model() = default;
  virtual const std::vector<GroupDecl>& groups() const = 0;
  virtual EmbeddingLayer& embedding() = 0;
  virtual std::size_t blocks() const = 0;
  virtual BlockLayer& block(std::size_t index) = 0;
  virtual LossLayer& head() = 0;
  // Upper bound of the bytes that torch tensors of one training micro-batch of B sequences of T tokens occupy at once:
  // stored layer inputs, and the largest layer's recomputation and backward. Gathered weights and flat gradients
  // excluded.
  virtual std::uint64_t activation_bytes(std::int64_t sequences, std::int64_t tokens_each) const = 0;
  // What each further micro-batch adds to it that is open at the same time and is not the one being computed: its
  // stored layer inputs or the gradient that takes their place, and its ids.
  virtual std::uint64_t open_micro_batch_bytes(std::int64_t sequences, std::int64_t tokens_each) const = 0;
  // What each block adds to it per open micro-batch whose graph is kept from forward to backward.
  virtual std::uint64_t graph_bytes(std::int64_t sequences, std::int64_t tokens_each) const = 0;
};

}  // namespace strata::zero
