// Runs a LayerCompute over weights that live in plain vectors, as LayerRunner does over gathered memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/numeric.h"
#include "models/decoder.h"
#include "zero/layer_compute.h"
#include "zero/torch_layer_compute.h"

namespace strata::models {

using Bytes = std::vector<std::byte>;

struct IdBatch {
  std::int64_t sequences;
  std::int64_t tokens_each;
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> labels;
  double loss_scale = 1;

  zero::BatchView view() const { return {sequences, tokens_each, tokens, labels, loss_scale}; }
};

inline IdBatch random_ids(std::int64_t sequences, std::int64_t tokens_each, std::int64_t vocab_size, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<std::int64_t> id(0, vocab_size - 1);
  IdBatch batch{sequences, tokens_each, {}, {}};
  for (std::int64_t i = 0; i < sequences * tokens_each; ++i) {
    batch.tokens.push_back(id(engine));
    batch.labels.push_back(i % 5 == 0 ? -100 : id(engine));
  }
  return batch;
}

class FlatRun {
 public:
  FlatRun(const hf::ModelConfig& config, const DecoderOptions& options, unsigned seed = 3)
      : type_(options.group_type == at::kFloat  ? DType::F32
              : options.group_type == at::kHalf ? DType::F16
                                                : DType::BF16),
        compute_(zero::make_torch_layer_compute(make_decoder(config, options), type_, 1)) {
    std::mt19937 engine(seed);
    for (const zero::FlatLayout& layout : compute_->layouts()) {
      weights_.emplace_back(layout.numel() * bytes_of(type_));
      for (std::size_t i = 0; i < layout.params().size(); ++i) fill(layout, i, engine);
    }
  }

  zero::LayerCompute& compute() { return *compute_; }
  std::vector<Bytes>& weights() { return weights_; }
  void bind() {
    for (std::size_t g = 0; g < weights_.size(); ++g) compute_->binding(g).bind(weights_[g].data());
  }
  void unbind() {
    for (std::size_t g = 0; g < weights_.size(); ++g) compute_->binding(g).unbind();
  }
  // Moves every weight to other memory and poisons the old.
  void move_weights() {
    for (Bytes& bytes : weights_) {
      Bytes moved = bytes;
      std::fill(bytes.begin(), bytes.end(), std::byte{0xff});
      graveyard_.push_back(std::exchange(bytes, std::move(moved)));
    }
    bind();
  }
  void forward(const IdBatch& batch) {
    compute_->begin(0, batch.view(), zero::Pass::Train);
    for (std::size_t layer = 0; layer + 1 < compute_->layers(); ++layer) compute_->forward(0, layer);
  }
  // All micro-batches through a layer before the next one; gradients() of each micro-batch as backward() gives them.
  std::vector<std::vector<std::vector<Bytes>>> train_vertically(const std::vector<IdBatch>& batches) {
    const std::size_t layers = compute_->layers();
    for (std::size_t m = 0; m < batches.size(); ++m) compute_->begin(m, batches[m].view(), zero::Pass::Train);
    for (std::size_t layer = 0; layer + 1 < layers; ++layer) {
      for (std::size_t m = 0; m < batches.size(); ++m) compute_->forward(m, layer);
    }
    std::vector<std::vector<std::vector<Bytes>>> gradients(batches.size(), std::vector<std::vector<Bytes>>(layers));
    for (std::size_t layer = layers; layer-- > 0;) {
      for (std::size_t m = 0; m < batches.size(); ++m) gradients[m][layer] = backward(m, layer);
    }
    return gradients;
  }
  // Flat gradients by layer, then by the layer's groups, in memory that was poisoned before.
  std::vector<std::vector<Bytes>> backward() {
    std::vector<std::vector<Bytes>> gradients(compute_->layers());
    for (std::size_t layer = compute_->layers(); layer-- > 0;) gradients[layer] = backward(0, layer);
    return gradients;
  }

 private:
  std::vector<Bytes> backward(std::size_t micro_batch, std::size_t layer) {
    std::vector<Bytes> gradients;
    std::vector<std::byte*> pointers;
    gradients.reserve(2);
    for (const std::size_t group : compute_->groups_of(layer)) {
      gradients.emplace_back(weights_[group].size(), std::byte{0xff});
      pointers.push_back(gradients.back().data());
    }
    compute_->backward(micro_batch, layer, pointers);
    return gradients;
  }
  void fill(const zero::FlatLayout& layout, std::size_t param, std::mt19937& engine) {
    const zero::ParamDecl& decl = layout.group().params[param];
    const bool is_norm = !decl.decay && decl.name.find("norm") != std::string::npos;
    std::normal_distribution<float> value(is_norm ? 1.0f : 0.0f, is_norm ? 0.1f : 0.15f);
    Bytes& bytes = weights_.back();
    for (std::size_t i = 0; i < layout.params()[param].numel; ++i) {
      const std::size_t at = layout.params()[param].offset + i;
      if (type_ == DType::F32) {
        reinterpret_cast<float*>(bytes.data())[at] = value(engine);
      } else {
        reinterpret_cast<std::uint16_t*>(bytes.data())[at] =
            type_ == DType::F16 ? float_to_half(value(engine)) : float_to_bf16(value(engine));
      }
    }
  }

  DType type_;
  std::unique_ptr<zero::LayerCompute> compute_;
  std::vector<Bytes> weights_;
  std::vector<Bytes> graveyard_;
};

}  // namespace strata::models
