// Ranks of a run that is planned on a machine where it does not run.
#pragma once

#include <algorithm>

#include "core/error.h"
#include "core/local_communicator.h"

namespace strata::comm {

// Says that it is rank 0 of `world`. What only this rank knows is what all know; nothing can be trained with it.
class PlannedRanks final : public Communicator {
 public:
  explicit PlannedRanks(std::size_t world) : world_(world) {}

  std::size_t rank() const override { return 0; }
  std::size_t world() const override { return world_; }
  void all_gather(Stream&, TensorSpan) override { refuse(); }
  void reduce_scatter(Stream&, TensorSpan) override { refuse(); }
  void all_to_all(Stream&, TensorSpan) override { refuse(); }
  void all_reduce_sum(std::span<double>) override { refuse(); }
  void all_gather_values(std::span<double> rows) override {
    const std::size_t row = rows.size() / world_;
    for (std::size_t r = 1; r < world_; ++r) std::copy_n(rows.begin(), row, rows.subspan(r * row).begin());
  }
  void broadcast(std::span<std::byte>, std::size_t) override {}
  void barrier() override {}
  void abort(std::exception_ptr) override {}
  CommStats stats() const override { return {}; }

 private:
  [[noreturn]] static void refuse() { contract_violation("planned ranks", "send nothing", __FILE__, __LINE__); }
  const std::size_t world_;
};

}  // namespace strata::comm
