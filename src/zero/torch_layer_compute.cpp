#include "zero/torch_layer_compute.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "core/error.h"
#include "zero/layer.h"
#include "zero/torch_host.h"
#include "zero/visits.h"

namespace strata::zero {
namespace {

c10::DataPtr borrowed(void* data, c10::Device device) {
  return {data, device};
}

// The parameters of one group as leaves whose storages are re-pointed at whatever memory the group is gathered into.
class TensorBinding final : public StorageBinding {
 public:
  TensorBinding(const FlatLayout& layout, const at::TensorOptions& options) : device_(options.device()) {
    const std::size_t element_bytes = options.dtype().itemsize();
    for (std::size_t i = 0; i < layout.params().size(); ++i) {
      const ParamSlot& slot = layout.params()[i];
      const std::size_t bytes = slot.numel * element_bytes;
      auto storage =
          c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, borrowed(nullptr, device_),
                                                /*allocator=*/nullptr, /*resizable=*/false);
      at::Tensor tensor = at::empty({0}, options);
      tensor.set_(c10::Storage(storage), 0, layout.group().params[i].shape);
      tensors_.push_back(tensor.requires_grad_(layout.group().trainable));
      storages_.push_back(std::move(storage));
      offsets_bytes_.push_back(slot.offset * element_bytes);
    }
  }

  void bind(std::byte* data) override {
    STRATA_EXPECTS(data != nullptr, "a group is bound to memory");
    for (std::size_t i = 0; i < storages_.size(); ++i) {
      storages_[i]->set_data_ptr_noswap(borrowed(data + offsets_bytes_[i], device_));
    }
    bound_ = true;
  }
  void unbind() override {
    for (const auto& storage : storages_) storage->set_data_ptr_noswap(borrowed(nullptr, device_));
    bound_ = false;
  }

  bool bound() const { return bound_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  const c10::Device device_;
  std::vector<at::Tensor> tensors_;
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages_;
  std::vector<std::size_t> offsets_bytes_;
  bool bound_ = false;
};

class TorchLayerCompute final : public LayerCompute {
 public:
  TorchLayerCompute(std::unique_ptr<Model> model, at::TensorOptions options, std::size_t world, std::size_t row_parts)
      : model_(std::move(model)), options_(options) {
    for (const GroupDecl& group : model_->groups()) {
      layouts_.emplace_back(group, world, row_parts);
      bindings_.push_back(std::make_unique<TensorBinding>(layouts_.back(), options_));
    }
    lowest_ = lowest_trained_layer(*this);
  }

  const std::vector<FlatLayout>& layouts() const override { return layouts_; }
  std::size_t layers() const override { return model_->blocks() + 2; }
  const std::vector<std::size_t>& groups_of(std::size_t layer) const override {
    if (layer == 0) return model_->embedding().groups();
    return layer == last() ? model_->head().groups() : model_->block(layer - 1).groups();
  }
  StorageBinding& binding(std::size_t group) override { return *bindings_.at(group); }
  bool backward_needs_params(std::size_t layer) const override { return layer != 0; }

  void keep_graphs(std::size_t layers) override { kept_ = std::min(layers, model_->blocks()); }
  void begin(std::size_t micro_batch, const BatchView& batch, Pass pass) override;
  void forward(std::size_t micro_batch, std::size_t layer) override;
  void backward(std::size_t micro_batch, std::size_t layer, std::span<std::byte* const> grads) override;
  LossSum loss(std::size_t micro_batch) const override { return open_.at(micro_batch).loss; }
  std::span<const float> logits(std::size_t micro_batch) const override {
    const at::Tensor& logits = open_.at(micro_batch).logits;
    STRATA_EXPECTS(logits.defined(), "logits exist once the last layer of a Generate pass has run");
    return {logits.const_data_ptr<float>(), static_cast<std::size_t>(logits.numel())};
  }
  void end(std::size_t micro_batch) override { open_.at(micro_batch) = {}; }
  void release() override {
    open_.clear();
    model_.reset();
  }

 private:
  // A block's forward with everything that its backward reads. Weights are among that: their storages point to nothing
  // while the group is sharded, and to its parameters again when backward runs.
  struct Graph {
    at::Tensor input;
    at::Tensor output;
  };
  // An open micro-batch; closed: without tokens.
  struct Open {
    Pass pass = Pass::Train;
    MicroBatch batch;
    std::vector<at::Tensor> inputs;  // [B, T, H] by layer; undefined where not (or no longer) needed
    std::vector<Graph> graphs;       // by layer; undefined where not kept
    at::Tensor grad_hidden;          // of the output of the next layer that backward() visits
    at::Tensor logits;
    LossSum loss;
  };

  std::size_t last() const { return layers() - 1; }
  Open& open(std::size_t micro_batch);
  std::vector<at::Tensor> params_of(std::size_t layer) const;
  void finish_forward(Open& open, LayerParams params);
  // Gradients of the layer's parameters, in the order of params_of(), undefined where there is none; leave that of its
  // input in open.grad_hidden.
  std::vector<at::Tensor> differentiate_head(Open& open);
  std::vector<at::Tensor> differentiate_block(Open& open, std::size_t layer);
  // Runs a block and records it.
  Graph record_block(const Open& open, std::size_t layer);
  bool keeps_graph(std::size_t layer) const { return layer < last() && layer + kept_ >= last() && layer >= lowest_; }
  void pack(std::size_t layer, std::span<const at::Tensor> gradients, std::span<std::byte* const> flat) const;

  std::unique_ptr<Model> model_;
  at::TensorOptions options_;  // type and device of weights and gradients
  std::vector<FlatLayout> layouts_;
  std::vector<std::unique_ptr<TensorBinding>> bindings_;
  std::size_t lowest_ = 0;  // layer that backward visits
  std::size_t kept_ = 0;    // blocks before the loss whose graphs are kept
  std::vector<Open> open_;  // by micro-batch
};

at::Tensor copy_ids(std::span<const std::int64_t> ids, std::int64_t sequences, std::int64_t tokens_each) {
  STRATA_EXPECTS(ids.size() == static_cast<std::size_t>(sequences * tokens_each), "a batch holds [B, T] ids");
  at::Tensor copy = at::empty({sequences, tokens_each}, at::kLong);
  std::copy(ids.begin(), ids.end(), copy.mutable_data_ptr<std::int64_t>());
  return copy;
}

void TorchLayerCompute::begin(std::size_t micro_batch, const BatchView& batch, Pass pass) {
  if (open_.size() <= micro_batch) open_.resize(micro_batch + 1);
  Open& open = open_[micro_batch];
  open = {};
  open.pass = pass;
  open.inputs.resize(layers());
  open.graphs.resize(layers());
  const auto there = [&](const at::Tensor& ids) { return ids.to(options_.device()); };
  open.batch.tokens = there(copy_ids(batch.tokens, batch.sequences, batch.tokens_each));
  if (pass != Pass::Generate) open.batch.labels = there(copy_ids(batch.labels, batch.sequences, batch.tokens_each));
  open.batch.loss_scale = batch.loss_scale;
}

TorchLayerCompute::Open& TorchLayerCompute::open(std::size_t micro_batch) {
  STRATA_EXPECTS(micro_batch < open_.size() && open_[micro_batch].batch.tokens.defined(),
                 "a layer runs for micro-batch " + std::to_string(micro_batch) + ", which is not open: call begin()");
  return open_[micro_batch];
}

std::vector<at::Tensor> TorchLayerCompute::params_of(std::size_t layer) const {
  std::vector<at::Tensor> params;
  for (const std::size_t group : groups_of(layer)) {
    const TensorBinding& binding = *bindings_[group];
    STRATA_EXPECTS(binding.bound(), "layer " + std::to_string(layer) + " runs while group " +
                                        layouts_[group].group().name + " is not bound to memory");
    params.insert(params.end(), binding.tensors().begin(), binding.tensors().end());
  }
  return params;
}

void TorchLayerCompute::forward(std::size_t micro_batch, std::size_t layer) {
  Open& now = open(micro_batch);
  STRATA_EXPECTS(layer == 0 || now.inputs.at(layer).defined(), "layers run in order");
  if (now.pass == Pass::Train && keeps_graph(layer)) {
    now.graphs[layer] = record_block(now, layer);
    now.inputs[layer + 1] = now.graphs[layer].output.detach();
    return;
  }
  const c10::AutoGradMode no_grad(false);
  const std::vector<at::Tensor> params = params_of(layer);
  if (layer == last()) {
    finish_forward(now, params);
    return;
  }
  now.inputs[layer + 1] = layer == 0 ? model_->embedding().forward(now.batch, params)
                                     : model_->block(layer - 1).forward(now.batch, now.inputs[layer], params);
  if (now.pass != Pass::Train || layer < lowest_) now.inputs[layer] = at::Tensor();
}

void TorchLayerCompute::finish_forward(Open& open, LayerParams params) {
  STRATA_EXPECTS(open.pass != Pass::Train, "in training the last layer runs in backward()");
  const at::Tensor hidden = std::exchange(open.inputs[last()], {});
  if (open.pass == Pass::Evaluate) {
    const LossLayer::Result result = model_->head().loss(open.batch, hidden, params, LossLayer::Want::Loss);
    open.loss = {result.loss_sum, result.tokens};
    return;
  }
  const at::Tensor last_position = hidden.select(1, hidden.size(1) - 1).contiguous();
  open.logits = model_->head().logits(last_position, params).cpu().contiguous();
}

std::vector<at::Tensor> TorchLayerCompute::differentiate_head(Open& open) {
  LossLayer::Result result = model_->head().loss(open.batch, std::exchange(open.inputs[last()], {}), params_of(last()),
                                                 LossLayer::Want::LossAndGrads);
  open.loss = {result.loss_sum, result.tokens};
  open.grad_hidden = std::move(result.grad_hidden);
  return std::move(result.grad_params);
}

TorchLayerCompute::Graph TorchLayerCompute::record_block(const Open& open, std::size_t layer) {
  const c10::AutoGradMode grad(true);
  Graph graph;
  graph.input = open.inputs[layer].detach().requires_grad_(true);
  graph.output = model_->block(layer - 1).forward(open.batch, graph.input, params_of(layer));
  return graph;
}

std::vector<at::Tensor> TorchLayerCompute::differentiate_block(Open& open, std::size_t layer) {
  Graph graph = std::exchange(open.graphs[layer], {});
  if (!graph.output.defined()) graph = record_block(open, layer);
  open.inputs[layer] = at::Tensor();
  const std::vector<at::Tensor> params = params_of(layer);
  std::vector<at::Tensor> wanted{graph.input};
  std::copy_if(params.begin(), params.end(), std::back_inserter(wanted),
               [](const at::Tensor& param) { return param.requires_grad(); });
  // What the block does not use has no gradient.
  std::vector<at::Tensor> made =
      torch::autograd::grad({graph.output}, wanted, {std::exchange(open.grad_hidden, {})},
                            /*retain_graph=*/std::nullopt, /*create_graph=*/false, /*allow_unused=*/true);
  open.grad_hidden = made[0].defined() ? std::move(made[0]) : at::zeros_like(graph.input);
  std::vector<at::Tensor> gradients(params.size());
  std::size_t next = 1;
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (params[i].requires_grad()) gradients[i] = std::move(made[next++]);
  }
  return gradients;
}

void TorchLayerCompute::backward(std::size_t micro_batch, std::size_t layer, std::span<std::byte* const> grads) {
  Open& now = open(micro_batch);
  STRATA_EXPECTS(now.pass == Pass::Train, "only a Train pass has a backward");
  STRATA_EXPECTS(layer == 0 || now.inputs.at(layer).defined(),
                 "backward visits each layer once, after the whole forward");
  STRATA_EXPECTS(layer == last() || now.grad_hidden.defined(), "backward visits the layers from the last to the first");
  if (layer == last()) {
    pack(layer, differentiate_head(now), grads);
  } else if (layer > 0) {
    pack(layer, differentiate_block(now, layer), grads);
  } else {
    pack(layer, model_->embedding().backward(now.batch, std::exchange(now.grad_hidden, {})), grads);
  }
}

void TorchLayerCompute::pack(std::size_t layer, std::span<const at::Tensor> gradients,
                             std::span<std::byte* const> flat) const {
  const std::vector<std::size_t>& groups = groups_of(layer);
  STRATA_EXPECTS(flat.size() == groups.size(), "one flat gradient per group that the layer names");
  const std::size_t element_bytes = options_.dtype().itemsize();
  const auto at_flat = [&](std::size_t g, std::size_t offset, at::IntArrayRef shape) {
    // With its device named, which else the driver is asked for.
    return at::for_blob(flat[g] + offset * element_bytes, shape)
        .options(options_)
        .target_device(options_.device())
        .make_tensor();
  };
  std::size_t next = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const FlatLayout& layout = layouts_[groups[g]];
    if (flat[g] == nullptr) {
      next += layout.params().size();
      continue;
    }
    for (std::size_t p = 0; p < layout.params().size(); ++p) {
      at::Tensor destination = at_flat(g, layout.params()[p].offset, layout.group().params[p].shape);
      const at::Tensor& gradient = gradients[next++];
      if (gradient.defined()) {
        destination.copy_(gradient);
      } else {
        destination.zero_();
      }
    }
    layout.for_each_gap(
        [&](std::size_t offset, std::size_t numel) { at_flat(g, offset, {static_cast<std::int64_t>(numel)}).zero_(); });
  }
}

}  // namespace

std::unique_ptr<LayerCompute> make_torch_layer_compute(std::unique_ptr<Model> model, DType type, std::size_t world,
                                                       std::size_t row_parts, std::optional<int> cuda_device) {
  STRATA_EXPECTS(model != nullptr, "a model to compute");
  at::TensorOptions options(torch_type(type));
  if (cuda_device) options = options.device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(*cuda_device));
  return std::make_unique<TorchLayerCompute>(std::move(model), options, world, row_parts);
}

}  // namespace strata::zero
