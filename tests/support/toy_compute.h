// ToyCompute: a small model written by hand, so that everything above torch runs under ThreadSanitizer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "support/plain_math.h"
#include "zero/layer_compute.h"
#include "zero/visits.h"

namespace strata::test {

// Layer 0 looks rows up in a table [V, H] (group 0). Layers 1..k add relu(x A) B to x, A [H, F] and B [F, H] (group i,
// which has a parameter without elements too).
// The last layer scales x by a vector [H] (group k+1) and multiplies with the transposed table: it names groups {0,
// k+1}, so group 0 is tied; with a head of its own, group k+1 holds another table [V, H] beside the vector.
// Parameters are upcast to fp32, sums run in index order, so results are deterministic.
// Sizes leave gaps between parameters and tails shorter than a page.
class ToyCompute final : public zero::LayerCompute {
 public:
  static constexpr std::size_t kVocabulary = 50;
  static constexpr std::size_t kHidden = 30;
  static constexpr std::size_t kInner = 44;

  enum class Head : std::uint8_t { Tied, Own };

  // `frozen`: groups that are not trained. `vocabulary`: rows of the tables; with thousands they are longer than one
  // rank's smallest row of the flat layout.
  ToyCompute(std::size_t blocks, DType dtype, std::size_t world = 1, Head head = Head::Tied,
             std::size_t vocabulary = kVocabulary, const std::vector<std::size_t>& frozen = {})
      : blocks_(blocks), dtype_(dtype), head_(head), vocabulary_(vocabulary) {
    const auto add = [&](zero::GroupDecl group) {
      group.trainable = std::find(frozen.begin(), frozen.end(), layouts_.size()) == frozen.end();
      layouts_.emplace_back(group, world);
      bindings_.push_back(std::make_unique<Binding>());
    };
    const auto dim = [](std::size_t n) { return static_cast<std::int64_t>(n); };
    add({"table", {{"table.weight", {dim(vocabulary), dim(kHidden)}}}});
    for (std::size_t b = 0; b < blocks; ++b) {
      add({"block." + std::to_string(b),
           {{"a", {dim(kHidden), dim(kInner)}}, {"b", {dim(kInner), dim(kHidden)}}, {"none", {0, dim(kInner)}}}});
    }
    zero::GroupDecl scale{"scale", {{"scale", {dim(kHidden)}, /*decay=*/false}}};
    if (head_ == Head::Own) scale.params.push_back({"out.weight", {dim(vocabulary), dim(kHidden)}});
    add(std::move(scale));
    groups_of_.push_back({0});
    for (std::size_t b = 1; b <= blocks; ++b) groups_of_.push_back({b});
    groups_of_.push_back(head_ == Head::Own ? std::vector{blocks + 1} : std::vector{std::size_t{0}, blocks + 1});
  }

  // Called when a layer begins to run.
  std::function<void(zero::Direction, std::size_t layer)> on_visit;

  const std::vector<zero::FlatLayout>& layouts() const override { return layouts_; }
  std::size_t layers() const override { return blocks_ + 2; }
  const std::vector<std::size_t>& groups_of(std::size_t layer) const override { return groups_of_.at(layer); }
  zero::StorageBinding& binding(std::size_t group) override { return *bindings_.at(group); }
  bool backward_needs_params(std::size_t layer) const override { return layer != 0; }

  void begin(std::size_t micro_batch, const zero::BatchView& batch, zero::Pass pass) override {
    STRATA_EXPECTS(!open_.contains(micro_batch), "begin() twice");
    Open& open = open_[micro_batch];
    open.pass = pass;
    open.sequences = static_cast<std::size_t>(batch.sequences);
    open.tokens.assign(batch.tokens.begin(), batch.tokens.end());
    open.labels.assign(batch.labels.begin(), batch.labels.end());
  }

  void forward(std::size_t micro_batch, std::size_t layer) override {
    if (on_visit) on_visit(zero::Direction::Forward, layer);
    Open& now = open(micro_batch);
    if (layer == blocks_ + 1) return run_head(now, nullptr, nullptr);
    if (layer == 0) {
      const TensorSpan table = param(0, 0);
      now.hidden.resize(now.tokens.size() * kHidden);
      for (std::size_t t = 0; t < now.tokens.size(); ++t) {
        for (std::size_t h = 0; h < kHidden; ++h) {
          now.hidden[t * kHidden + h] = load_element(table, static_cast<std::size_t>(now.tokens[t]) * kHidden + h);
        }
      }
      return;
    }
    now.inputs.push_back(now.hidden);
    const std::vector<float> inner = inner_of(layer, now.hidden);
    const std::vector<float> b = upcast(layer, 1);
    for (std::size_t t = 0; t < now.tokens.size(); ++t) {
      for (std::size_t f = 0; f < kInner; ++f) {
        const float value = std::max(inner[t * kInner + f], 0.0F);
        for (std::size_t h = 0; h < kHidden; ++h) now.hidden[t * kHidden + h] += value * b[f * kHidden + h];
      }
    }
  }

  void backward(std::size_t micro_batch, std::size_t layer, std::span<std::byte* const> grads) override {
    if (on_visit) on_visit(zero::Direction::Backward, layer);
    Open& now = open(micro_batch);
    STRATA_EXPECTS(now.pass == zero::Pass::Train, "backward() outside of a training micro-batch");
    std::vector<std::vector<float>> flat;
    for (const std::size_t group : groups_of_[layer]) flat.emplace_back(layouts_[group].numel(), 0.0F);
    if (layer == blocks_ + 1) {
      const bool own = head_ == Head::Own;
      run_head(now, flat[0].data() + (own ? layouts_[blocks_ + 1].params()[1].offset : 0), flat[own ? 0 : 1].data());
    } else if (layer == 0) {
      for (std::size_t t = 0; t < now.tokens.size(); ++t) {
        for (std::size_t h = 0; h < kHidden; ++h) {
          flat[0][static_cast<std::size_t>(now.tokens[t]) * kHidden + h] += now.grad[t * kHidden + h];
        }
      }
    } else {
      block_backward(now, layer, flat[0]);
    }
    for (std::size_t i = 0; i < grads.size(); ++i) {
      if (grads[i] == nullptr) continue;
      const TensorSpan out{grads[i], dtype_, flat[i].size()};
      for (std::size_t j = 0; j < flat[i].size(); ++j) store_element(out, j, flat[i][j]);
    }
  }

  zero::LossSum loss(std::size_t micro_batch) const override { return open_.at(micro_batch).loss; }
  std::span<const float> logits(std::size_t micro_batch) const override { return open_.at(micro_batch).logits; }
  void end(std::size_t micro_batch) override {
    STRATA_EXPECTS(open_.erase(micro_batch) == 1, "end() outside of a micro-batch");
  }

 private:
  struct Binding final : zero::StorageBinding {
    void bind(std::byte* bytes) override {
      STRATA_EXPECTS(data == nullptr, "bound twice");
      data = bytes;
    }
    void unbind() override {
      STRATA_EXPECTS(data != nullptr, "unbound twice");
      data = nullptr;
    }
    std::byte* data = nullptr;
  };

  struct Open {
    zero::Pass pass = zero::Pass::Train;
    std::size_t sequences = 1;
    std::vector<std::int64_t> tokens;
    std::vector<std::int64_t> labels;
    std::vector<float> hidden;
    std::vector<float> grad;                 // d(loss)/d(output) of the next layer that backward() visits
    std::vector<std::vector<float>> inputs;  // of the middle layers that ran, last in first out
    std::vector<float> logits;
    zero::LossSum loss;
  };

  Open& open(std::size_t micro_batch) {
    STRATA_EXPECTS(open_.contains(micro_batch), "a layer runs outside of a micro-batch");
    return open_.at(micro_batch);
  }

  TensorSpan param(std::size_t group, std::size_t index) const {
    STRATA_EXPECTS(bindings_[group]->data != nullptr, "group " + layouts_[group].group().name + " is not bound");
    const zero::ParamSlot& slot = layouts_[group].params()[index];
    return TensorSpan{bindings_[group]->data, dtype_, layouts_[group].numel()}.subspan(slot.offset, slot.numel);
  }

  std::vector<float> upcast(std::size_t group, std::size_t index) const {
    const TensorSpan span = param(group, index);
    std::vector<float> values(span.numel);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = load_element(span, i);
    return values;
  }

  std::vector<float> inner_of(std::size_t layer, const std::vector<float>& x) const {
    const std::vector<float> a = upcast(layer, 0);
    const std::size_t tokens = x.size() / kHidden;
    std::vector<float> inner(tokens * kInner, 0.0F);
    for (std::size_t t = 0; t < tokens; ++t) {
      for (std::size_t h = 0; h < kHidden; ++h) {
        for (std::size_t f = 0; f < kInner; ++f) inner[t * kInner + f] += x[t * kHidden + h] * a[h * kInner + f];
      }
    }
    return inner;
  }

  // now.grad is d(loss)/d(output) before and d(loss)/d(input) after.
  void block_backward(Open& now, std::size_t layer, std::vector<float>& flat) {
    const std::vector<float> x = std::move(now.inputs.back());
    now.inputs.pop_back();
    const std::vector<float> inner = inner_of(layer, x);
    const std::vector<float> a = upcast(layer, 0);
    const std::vector<float> b = upcast(layer, 1);
    float* const grad_a = flat.data() + layouts_[layer].params()[0].offset;
    float* const grad_b = flat.data() + layouts_[layer].params()[1].offset;
    for (std::size_t t = 0; t < now.tokens.size(); ++t) {
      const std::vector<float> out(now.grad.begin() + static_cast<std::ptrdiff_t>(t * kHidden),
                                   now.grad.begin() + static_cast<std::ptrdiff_t>((t + 1) * kHidden));
      for (std::size_t f = 0; f < kInner; ++f) {
        const float value = inner[t * kInner + f];
        if (value <= 0) continue;
        float into = 0;
        for (std::size_t h = 0; h < kHidden; ++h) {
          grad_b[f * kHidden + h] += value * out[h];
          into += out[h] * b[f * kHidden + h];
        }
        for (std::size_t h = 0; h < kHidden; ++h) {
          grad_a[h * kInner + f] += x[t * kHidden + h] * into;
          now.grad[t * kHidden + h] += into * a[h * kInner + f];
        }
      }
    }
  }

  // Loss, or logits; with gradient buffers also their gradients and now.grad.
  void run_head(Open& now, float* grad_table, float* grad_scale) {
    const std::vector<float> table = head_ == Head::Own ? upcast(blocks_ + 1, 1) : upcast(0, 0);
    const std::vector<float> scale = upcast(blocks_ + 1, 0);
    now.grad.assign(now.hidden.size(), 0.0F);
    now.logits.clear();
    const std::size_t each = now.tokens.size() / now.sequences;
    for (std::size_t t = 0; t < now.tokens.size(); ++t) {
      const float* const x = now.hidden.data() + t * kHidden;
      std::vector<float> logits(vocabulary_, 0.0F);
      for (std::size_t v = 0; v < vocabulary_; ++v) {
        for (std::size_t h = 0; h < kHidden; ++h) logits[v] += x[h] * scale[h] * table[v * kHidden + h];
      }
      if (now.pass == zero::Pass::Generate) {
        if ((t + 1) % each == 0) now.logits.insert(now.logits.end(), logits.begin(), logits.end());
        continue;
      }
      if (now.labels[t] < 0) continue;
      const auto label = static_cast<std::size_t>(now.labels[t]);
      float sum = 0;
      for (float& value : logits) sum += value = std::exp(value);
      now.loss.loss_sum -= static_cast<double>(std::log(logits[label] / sum));
      ++now.loss.tokens;
      if (grad_table == nullptr) continue;
      for (std::size_t v = 0; v < vocabulary_; ++v) {
        const float delta = logits[v] / sum - (v == label ? 1.0F : 0.0F);
        for (std::size_t h = 0; h < kHidden; ++h) {
          grad_table[v * kHidden + h] += delta * x[h] * scale[h];
          grad_scale[h] += delta * x[h] * table[v * kHidden + h];
          now.grad[t * kHidden + h] += delta * scale[h] * table[v * kHidden + h];
        }
      }
    }
  }

  const std::size_t blocks_;
  const DType dtype_;
  const Head head_;
  const std::size_t vocabulary_;
  std::vector<zero::FlatLayout> layouts_;
  std::vector<std::vector<std::size_t>> groups_of_;
  std::vector<std::unique_ptr<Binding>> bindings_;
  std::map<std::size_t, Open> open_;  // by micro-batch
};

}  // namespace strata::test
