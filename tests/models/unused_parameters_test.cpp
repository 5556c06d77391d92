// Parameters that no layer reads, that have no elements, or that are frozen, in a model written for this test.
#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "zero/layer.h"
#include "zero/torch_layer_compute.h"

namespace strata::zero {
namespace {

constexpr std::int64_t kVocabulary = 5;
constexpr std::int64_t kHidden = 2;

class Embedding final : public EmbeddingLayer {
 public:
  const std::vector<std::size_t>& groups() const override { return groups_; }
  at::Tensor forward(const MicroBatch& batch, LayerParams params) override {
    return at::embedding(params[0], batch.tokens);
  }
  std::vector<at::Tensor> backward(const MicroBatch& batch, const at::Tensor& grad_hidden) override {
    return {at::embedding_dense_backward(grad_hidden, batch.tokens, kVocabulary, -1, false), at::Tensor()};
  }

 private:
  std::vector<std::size_t> groups_{0};
};

// hidden * scale + sum(empty); `unused` is not read.
class Block final : public BlockLayer {
 public:
  explicit Block(std::size_t group) : groups_{group} {}
  const std::vector<std::size_t>& groups() const override { return groups_; }
  at::Tensor forward(const MicroBatch&, const at::Tensor& hidden, LayerParams params) override {
    return hidden * params[1] + params[2].sum();
  }

 private:
  std::vector<std::size_t> groups_;
};

// The loss is the sum of the hidden states.
class Loss final : public LossLayer {
 public:
  explicit Loss(std::size_t group) : groups_{group} {}
  const std::vector<std::size_t>& groups() const override { return groups_; }
  Result loss(const MicroBatch& batch, const at::Tensor& hidden, LayerParams, Want) override {
    return {hidden.sum().item().toDouble(), batch.labels.numel(), hidden.new_ones(hidden.sizes()), {at::Tensor()}};
  }
  at::Tensor logits(const at::Tensor& hidden, LayerParams) override { return hidden; }

 private:
  std::vector<std::size_t> groups_;
};

class Small final : public Model {
 public:
  explicit Small(const std::vector<std::size_t>& frozen) {
    groups_ = {{"embedding", {{"table", {kVocabulary, kHidden}}, {"spare", {7}}}},
               {"block.0", {{"unused", {3}}, {"scale", {kHidden}}, {"empty", {0, 4}}}},
               {"block.1", {{"unused", {3}}, {"scale", {kHidden}}, {"empty", {0}}}},
               {"head", {{"norm", {kHidden}}}}};
    for (const std::size_t group : frozen) groups_[group].trainable = false;
  }
  const std::vector<GroupDecl>& groups() const override { return groups_; }
  EmbeddingLayer& embedding() override { return embedding_; }
  std::size_t blocks() const override { return blocks_.size(); }
  BlockLayer& block(std::size_t index) override { return blocks_.at(index); }
  LossLayer& head() override { return head_; }
  std::uint64_t activation_bytes(std::int64_t, std::int64_t) const override { return 0; }
  std::uint64_t open_micro_batch_bytes(std::int64_t, std::int64_t) const override { return 0; }
  std::uint64_t graph_bytes(std::int64_t, std::int64_t) const override { return 0; }

 private:
  std::vector<GroupDecl> groups_;
  Embedding embedding_;
  std::vector<Block> blocks_{Block(1), Block(2)};
  Loss head_{3};
};

using Flat = std::vector<float>;

// The parameters that a group's flat buffer holds, one after the other.
std::vector<Flat> params_in(const FlatLayout& layout, const Flat& flat) {
  std::vector<Flat> params;
  for (const ParamSlot& slot : layout.params()) {
    const auto begin = flat.begin() + static_cast<std::ptrdiff_t>(slot.offset);
    params.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(slot.numel));
  }
  return params;
}

// Gradients by group and parameter after two tokens, 1 and 4, from tables of ones and scales of 2 and 3; empty for
// groups that got none.
std::vector<std::vector<Flat>> gradients(const std::vector<std::size_t>& frozen, std::size_t kept_graphs,
                                         std::size_t lowest) {
  const auto compute = make_torch_layer_compute(std::make_unique<Small>(frozen), DType::F32, 1);
  compute->keep_graphs(kept_graphs);
  std::vector<Flat> weights;
  for (std::size_t g = 0; g < 4; ++g) {
    const float value = g == 0 ? 1.0F : g == 1 ? 2.0F : 3.0F;
    weights.emplace_back(compute->layouts()[g].numel(), value);
    compute->binding(g).bind(reinterpret_cast<std::byte*>(weights[g].data()));
  }
  const std::vector<std::int64_t> ids{1, 4};
  compute->begin(0, {1, 2, ids, ids}, Pass::Train);
  for (std::size_t layer = 0; layer < 3; ++layer) compute->forward(0, layer);
  std::vector<std::vector<Flat>> result(4);
  for (std::size_t layer = 4; layer-- > lowest;) {
    const std::size_t group = compute->groups_of(layer).front();
    const FlatLayout& layout = compute->layouts()[group];
    Flat flat(layout.numel(), -1.0F);  // what was in the buffer before
    const bool trained = layout.group().trainable;
    std::byte* const pointer = trained ? reinterpret_cast<std::byte*>(flat.data()) : nullptr;
    compute->backward(0, layer, {&pointer, 1});
    if (!trained) continue;
    result[group] = params_in(layout, flat);
    layout.for_each_gap([&](std::size_t offset, std::size_t numel) {
      for (std::size_t i = 0; i < numel; ++i) EXPECT_EQ(flat[offset + i], 0.0F);
    });
  }
  EXPECT_EQ(compute->loss(0).loss_sum, 2 * 2 * 2 * 3);
  return result;
}

const Flat kTable{0, 0, 6, 6, 0, 0, 0, 0, 6, 6};  // of the rows of the tokens: 2 * 3

TEST(UnusedParameters, HaveAZeroGradientInEveryKindOfLayer) {
  for (const std::size_t kept_graphs : {0, 2}) {
    const auto grads = gradients({}, kept_graphs, 0);
    EXPECT_EQ(grads[0], (std::vector<Flat>{kTable, Flat(7, 0.0F)}));
    EXPECT_EQ(grads[1], (std::vector<Flat>{{0, 0, 0}, {6, 6}, {}})) << "two tokens of 1, times 3";
    EXPECT_EQ(grads[2], (std::vector<Flat>{{0, 0, 0}, {4, 4}, {}})) << "two tokens of 2";
    EXPECT_EQ(grads[3], (std::vector<Flat>{{0, 0}}));
  }
}

TEST(FrozenParameters, LeaveTheOthersTheirGradients) {
  for (const std::size_t kept_graphs : {0, 1, 2}) {
    const auto all = gradients({}, kept_graphs, 0);
    const auto middle = gradients({2, 3}, kept_graphs, 0);
    EXPECT_EQ(middle[0], all[0]);
    EXPECT_EQ(middle[1], all[1]);
    EXPECT_TRUE(middle[2].empty() && middle[3].empty());
    const auto top = gradients({0, 1}, kept_graphs, 2);
    EXPECT_EQ(top[2], all[2]);
    EXPECT_TRUE(top[0].empty() && top[1].empty());
  }
}

}  // namespace
}  // namespace strata::zero
