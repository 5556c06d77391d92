#include "comm/hierarchical_communicator.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace strata::comm {

std::size_t hierarchical_scratch_bytes(std::size_t nodes, std::size_t ranks_per_node) {
  return nodes == 1 || ranks_per_node == 1 ? 0 : nodes * kHopChunkBytes;
}

HierarchicalCommunicator::HierarchicalCommunicator(Communicator& intra, Communicator& inter, Communicator& flat,
                                                   std::span<std::byte> scratch)
    : ForwardingCommunicator(flat), intra_(intra), inter_(inter), scratch_(scratch) {
  STRATA_EXPECTS(
      flat.world() == inter.world() * intra.world() && flat.rank() == inter.rank() * intra.world() + intra.rank(),
      "rank " + std::to_string(flat.rank()) + " of " + std::to_string(flat.world()) + " is not rank " +
          std::to_string(intra.rank()) + " of " + std::to_string(intra.world()) + " on node " +
          std::to_string(inter.rank()) + " of " + std::to_string(inter.world()));
  const std::size_t needed = hierarchical_scratch_bytes(inter.world(), intra.world());
  STRATA_EXPECTS(scratch.size() >= needed,
                 "scratch of " + std::to_string(needed) + " bytes, got " + std::to_string(scratch.size()));
}

void HierarchicalCommunicator::all_gather(Stream& stream, TensorSpan full) {
  between_nodes(Hop::Gather, stream, full);
  inside_nodes(Hop::Gather, stream, full);
}

void HierarchicalCommunicator::reduce_scatter(Stream& stream, TensorSpan full) {
  inside_nodes(Hop::Reduce, stream, full);
  between_nodes(Hop::Reduce, stream, full);
}

void HierarchicalCommunicator::abort(std::exception_ptr reason) {
  intra_.abort(reason);
  inter_.abort(reason);
  base().abort(reason);
}

CommStats HierarchicalCommunicator::stats() const {
  CommStats sum = base().stats();
  for (const Communicator* hop : {&intra_, &inter_}) {
    const CommStats part = hop->stats();
    sum.bytes_sent += part.bytes_sent;
    sum.control_bytes += part.control_bytes;
    sum.busy_seconds += part.busy_seconds;
  }
  return sum;
}

void HierarchicalCommunicator::run(Hop hop, Communicator& communicator, Stream& stream, TensorSpan full) {
  hop == Hop::Gather ? communicator.all_gather(stream, full) : communicator.reduce_scatter(stream, full);
}

// The rows (node, l) of this rank's l lie L rows apart, so they pass through scratch.
void HierarchicalCommunicator::between_nodes(Hop hop, Stream& stream, TensorSpan full) {
  const std::size_t nodes = inter_.world(), ranks_per_node = intra_.world();
  if (nodes == 1) return;
  if (ranks_per_node == 1) return run(hop, inter_, stream, full);
  STRATA_EXPECTS(full.numel % world() == 0, "rows of equal size");
  const std::size_t row = full.numel / world();
  const std::size_t chunk = kHopChunkBytes / bytes_of(full.dtype);
  for (std::size_t first = 0; first < row; first += chunk) {
    const std::size_t numel = std::min(chunk, row - first);
    const TensorSpan gathered{scratch_.data(), full.dtype, nodes * numel};
    const auto in_full = [&](std::size_t node) {
      return full.subspan((node * ranks_per_node + intra_.rank()) * row + first, numel);
    };
    const auto in_scratch = [&](std::size_t node) { return gathered.subspan(node * numel, numel); };
    for (std::size_t node = 0; node < nodes; ++node) {
      if (hop == Hop::Gather && node != inter_.rank()) continue;
      stream.copy(in_scratch(node).data, in_full(node).data, in_full(node).bytes());
    }
    run(hop, inter_, stream, gathered);
    // Of a gather this rank's row as well: a quantizing communicator has rounded it.
    for (std::size_t node = 0; node < nodes; ++node) {
      if (hop == Hop::Reduce && node != inter_.rank()) continue;
      stream.copy(in_full(node).data, in_scratch(node).data, in_full(node).bytes());
    }
  }
}

// The rows of a node follow each other.
void HierarchicalCommunicator::inside_nodes(Hop hop, Stream& stream, TensorSpan full) {
  if (intra_.world() == 1) return;
  STRATA_EXPECTS(full.numel % world() == 0, "rows of equal size");
  const std::size_t numel = full.numel / inter_.world();
  for (std::size_t node = 0; node < inter_.world(); ++node) {
    run(hop, intra_, stream, full.subspan(node * numel, numel));
  }
}

}  // namespace strata::comm
