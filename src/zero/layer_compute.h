// Port: what computes layers. Torch is one implementation (torch_layer_compute.h), two hand-written matrix products in
// tests another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "zero/flat_layout.h"

namespace strata::zero {

// Tensors of one parameter group that view memory which comes and goes.
class StorageBinding {
 public:
  virtual ~StorageBinding() = default;
  // `data` holds the group's flat buffer, laid out by its FlatLayout, until unbind().
  virtual void bind(std::byte* data) = 0;
  virtual void unbind() = 0;
};

// A micro-batch on the host; see data::Batch for the meaning of the fields.
struct BatchView {
  std::int64_t sequences = 0;            // B
  std::int64_t tokens_each = 0;          // T
  std::span<const std::int64_t> tokens;  // [B, T]
  std::span<const std::int64_t> labels;  // [B, T], -100 where no loss is taken; empty for Generate
  double loss_scale = 1;                 // Train: gradients are of loss_scale * loss_sum; loss() is without it
};

enum class Pass : std::uint8_t { Train, Evaluate, Generate };

struct LossSum {
  double loss_sum = 0;      // sum of token losses
  std::int64_t tokens = 0;  // positions that carry a label
};

// Layers 0 .. layers()-1; the last one holds the loss. Not thread-safe: begin() .. end() and the bindings run in the
// order of one compute stream. When a layer runs, every group it names is bound (in backward() only where
// backward_needs_params()). Micro-batches are told apart by an index that the caller chooses, small numbers from 0;
// several may be open at a time, each with its own activations, and what one computes does not depend on the others.
class LayerCompute {
 public:
  virtual ~LayerCompute() = default;
  virtual const std::vector<FlatLayout>& layouts() const = 0;  // one per group
  virtual std::size_t layers() const = 0;
  virtual const std::vector<std::size_t>& groups_of(std::size_t layer) const = 0;  // groups the layer names
  virtual StorageBinding& binding(std::size_t group) = 0;
  // Whether backward(layer) reads the parameters. False for an embedding, whose gradient needs the tokens only.
  virtual bool backward_needs_params(std::size_t layer) const = 0;

  // Train: the last `layers` layers before the loss keep what forward recorded for backward instead of recomputing it.
  // Takes memory, changes no bit. Requires: no micro-batch is open. One that records nothing ignores it.
  virtual void keep_graphs(std::size_t layers) { (void)layers; }
  // Opens a micro-batch; copies what it needs of `batch`.
  virtual void begin(std::size_t micro_batch, const BatchView& batch, Pass pass) = 0;
  // Runs a layer without recording. Train: layers before the last one, whose inputs are kept for backward(). Evaluate:
  // every layer, the last one gives loss(). Generate: every layer, the last one gives logits().
  virtual void forward(std::size_t micro_batch, std::size_t layer) = 0;
  // Train, descending from the last layer: recomputes the layer (unless its graph was kept) and differentiates it; for
  // the last layer forward and backward are this one visit. Overwrites grads[i], the flat gradient of
  // groups_of(layer)[i] in the group's type, padding included (zeros), with
  // d(loss_scale * loss_sum)/d(param); null for a frozen group. Of a parameter that the layer does not use it is zero.
  // Layers below lowest_trained_layer() need not be visited.
  virtual void backward(std::size_t micro_batch, std::size_t layer, std::span<std::byte* const> grads) = 0;
  // Of an open micro-batch, once its last layer has run.
  virtual LossSum loss(std::size_t micro_batch) const = 0;
  // Generate: logits of the last position of each sequence, [B, V] in fp32.
  virtual std::span<const float> logits(std::size_t micro_batch) const = 0;
  // Closes the micro-batch: drops its activations and results.
  virtual void end(std::size_t micro_batch) = 0;
  // Drops all that lies in memory of the compute stream's device, open micro-batches included: a stream must not end
  // before the memory that was allocated for it. Only layouts() and groups_of() may be used afterwards. From any
  // thread, once the work of the compute stream is done.
  virtual void release() {}
};

}  // namespace strata::zero
