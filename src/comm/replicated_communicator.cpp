#include "comm/replicated_communicator.h"

namespace strata::comm {

void ReplicatedCommunicator::reduce_scatter(Stream& stream, TensorSpan full) {
  base().reduce_scatter(stream, full);
  const std::size_t row = full.numel / world();
  const TensorSpan mine = full.subspan(rank() * row, row);
  replicas_.reduce_scatter(stream, mine);
  replicas_.all_gather(stream, mine);
}

void ReplicatedCommunicator::abort(std::exception_ptr reason) {
  base().abort(reason);
  replicas_.abort(reason);
}

}  // namespace strata::comm
