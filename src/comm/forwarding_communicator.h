// A communicator that passes every call on: what decorators of the port begin with.
#pragma once

#include "core/communicator.h"

namespace strata::comm {

// Does not own `base`, which must outlive it and what it has queued.
class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(Communicator& base) : base_(base) {}

  std::size_t rank() const override { return base_.rank(); }
  std::size_t world() const override { return base_.world(); }
  void all_gather(Stream& stream, TensorSpan full) override { base_.all_gather(stream, full); }
  void reduce_scatter(Stream& stream, TensorSpan full) override { base_.reduce_scatter(stream, full); }
  void all_to_all(Stream& stream, TensorSpan full) override { base_.all_to_all(stream, full); }
  void all_reduce_sum(std::span<double> values) override { base_.all_reduce_sum(values); }
  void all_gather_values(std::span<double> all) override { base_.all_gather_values(all); }
  void broadcast(std::span<std::byte> bytes, std::size_t root) override { base_.broadcast(bytes, root); }
  void barrier() override { base_.barrier(); }
  void abort(std::exception_ptr reason) override { base_.abort(reason); }
  CommStats stats() const override { return base_.stats(); }

 protected:
  Communicator& base() { return base_; }
  const Communicator& base() const { return base_; }

 private:
  Communicator& base_;
};

}  // namespace strata::comm
