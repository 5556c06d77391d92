// A communicator of one rank: every collective is complete at once.
#pragma once

#include "core/communicator.h"

namespace strata {

class LocalCommunicator final : public Communicator {
 public:
  std::size_t rank() const override { return 0; }
  std::size_t world() const override { return 1; }
  void all_gather(Stream&, TensorSpan) override {}
  void reduce_scatter(Stream&, TensorSpan) override {}
  void all_to_all(Stream&, TensorSpan) override {}
  void all_reduce_sum(std::span<double>) override {}
  void all_gather_values(std::span<double>) override {}
  void broadcast(std::span<std::byte>, std::size_t) override {}
  void barrier() override {}
  void abort(std::exception_ptr) override {}
  CommStats stats() const override { return {}; }
};

}  // namespace strata
