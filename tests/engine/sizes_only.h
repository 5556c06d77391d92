// SizesOnly: a model that has sizes and cannot compute, for plans.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.h"
#include "zero/layer_compute.h"

namespace strata::test {

// An embedding, `blocks` layers and a head with `block`, respectively `table` elements; a tied head names the
// embedding's group too.
class SizesOnly final : public zero::LayerCompute {
 public:
  enum class Head { Own, Tied };

  SizesOnly(std::size_t blocks, std::int64_t block, std::int64_t table, Head head, std::size_t world = 1)
      : world_(world) {
    add("embedding", table);
    for (std::size_t b = 0; b < blocks; ++b) add("block." + std::to_string(b), block);
    add("head", head == Head::Own ? table : 1);
    if (head == Head::Tied) groups_of_.back().insert(groups_of_.back().begin(), 0);
  }

  const std::vector<zero::FlatLayout>& layouts() const override { return layouts_; }
  std::size_t layers() const override { return groups_of_.size(); }
  const std::vector<std::size_t>& groups_of(std::size_t layer) const override { return groups_of_.at(layer); }
  bool backward_needs_params(std::size_t layer) const override { return layer != 0; }
  zero::StorageBinding& binding(std::size_t) override { cannot(); }
  void begin(std::size_t, const zero::BatchView&, zero::Pass) override { cannot(); }
  void forward(std::size_t, std::size_t) override { cannot(); }
  void backward(std::size_t, std::size_t, std::span<std::byte* const>) override { cannot(); }
  zero::LossSum loss(std::size_t) const override { cannot(); }
  std::span<const float> logits(std::size_t) const override { cannot(); }
  void end(std::size_t) override { cannot(); }

 private:
  [[noreturn]] static void cannot() { contract_violation("plans compute nothing", "SizesOnly", __FILE__, __LINE__); }
  void add(const std::string& name, std::int64_t numel) {
    groups_of_.push_back({layouts_.size()});
    layouts_.emplace_back(zero::GroupDecl{name, {{name + ".weight", {numel}}}}, world_);
  }

  std::size_t world_;
  std::vector<zero::FlatLayout> layouts_;
  std::vector<std::vector<std::size_t>> groups_of_;
};

}  // namespace strata::test
