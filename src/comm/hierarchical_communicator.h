// HierarchicalCommunicator: collectives in two hops, so that a slow link between nodes carries little.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/forwarding_communicator.h"

namespace strata::comm {

// Bytes of a row that are copied and sent at a time between nodes. A multiple of kScaleBlock elements of every type, so
// that it changes no bit, with a quantizing communicator between nodes either.
inline constexpr std::size_t kHopChunkBytes = 1024 * 1024;

// Bytes of the scratch that a HierarchicalCommunicator over `nodes` nodes of `ranks_per_node` ranks needs.
std::size_t hierarchical_scratch_bytes(std::size_t nodes, std::size_t ranks_per_node);

// N = M * L ranks: M nodes of L ranks each, rank r = node * L + l. `intra` joins the L ranks of a node (its rank is l),
// `inter` the M ranks with the same l (its rank is the node), `flat` all of them in that order.
//
// - all_gather: between nodes among the same l, then inside the node. Each row enters a node once.
// - reduce_scatter: inside the node, then between nodes. Node sums are rounded to the element type before they travel,
//   and are added in node order: one rounding more and another order than in the port's promise, so other bits than
//   `flat` gives, but always the same ones.
// - all_to_all and all that blocks: `flat`.
//
// With F bytes in `full`, all_gather and reduce_scatter each send per rank (M-1)/N F on `inter` and (L-1)/L F on
// `intra`, in all (N-1)/N F as without hops. A node's L ranks put (M-1)/M F on the link between nodes; if each rank
// sends to each other one, as a flat exchange does, it is L times as much.
//
// `inter`, or both, may be a QuantizedCommunicator. Gathered weights that are coded between nodes and once more inside
// them are rounded once ([Note: block codes]); gradients are rounded once per hop, as in qgZ of Wang et al., "ZeRO++",
// 2023 (arXiv:2306.10209), which this follows.
//
// Owns nothing: the communicators and `scratch`, which lies where they work, outlive it and what is queued. All ranks
// have the same M and L. stats() is the sum of the three.
class HierarchicalCommunicator final : public ForwardingCommunicator {
 public:
  // Requires: ranks and sizes as above; scratch of at least hierarchical_scratch_bytes(), aligned to the element type.
  HierarchicalCommunicator(Communicator& intra, Communicator& inter, Communicator& flat, std::span<std::byte> scratch);

  void all_gather(Stream& stream, TensorSpan full) override;
  void reduce_scatter(Stream& stream, TensorSpan full) override;
  void abort(std::exception_ptr reason) override;
  CommStats stats() const override;

 private:
  enum class Hop : std::uint8_t { Gather, Reduce };
  static void run(Hop hop, Communicator& communicator, Stream& stream, TensorSpan full);
  void between_nodes(Hop hop, Stream& stream, TensorSpan full);
  void inside_nodes(Hop hop, Stream& stream, TensorSpan full);

  Communicator& intra_;
  Communicator& inter_;
  const std::span<std::byte> scratch_;
};

}  // namespace strata::comm
