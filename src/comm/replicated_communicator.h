// ReplicatedCommunicator: a model that is divided among some ranks and copied to others.
#pragma once

#include "comm/forwarding_communicator.h"

namespace strata::comm {

// Hybrid sharding: `shards` joins the ranks that divide one copy among them, `replicas` those that hold the same row of
// every copy. reduce_scatter adds up over both: inside the copy, then row r over the replicas, [replicas, row/replicas]
// at a time: each adds up one part of it in replica order and gathers the others, so that all have the same bits. Node
// sums are rounded to the element type before they are added. The rest is that of `shards`.
//
// Owns nothing. Per rank, with F bytes in `full`, S shards and R replicas: (S-1)/S F on `shards` and 2 (R-1)/R F/S on
// `replicas`. stats() are those of `shards`.
class ReplicatedCommunicator final : public ForwardingCommunicator {
 public:
  ReplicatedCommunicator(Communicator& shards, Communicator& replicas)
      : ForwardingCommunicator(shards), replicas_(replicas) {}

  // Requires: rows of a multiple of the number of replicas.
  void reduce_scatter(Stream& stream, TensorSpan full) override;
  void abort(std::exception_ptr reason) override;

 private:
  Communicator& replicas_;
};

}  // namespace strata::comm
