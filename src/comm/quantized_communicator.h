// QuantizedCommunicator: weights and gradients travel as blocks of small integers.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "comm/forwarding_communicator.h"
#include "core/block_codes.h"
#include "core/shard_optimizer.h"

namespace strata::comm {

// Elements of a row that are coded and sent at a time. A multiple of kScaleBlock, so that it changes no bit.
inline constexpr std::size_t kQuantizedChunk = 256 * 1024;

struct QuantizedOptions {
  std::optional<BlockCode> weights = {};    // of all_gather; none: as they are
  std::optional<BlockCode> gradients = {};  // of reduce_scatter; none: as they are
};

// Bytes of the scratch that a QuantizedCommunicator of `world` ranks needs, whatever it is given.
std::size_t quantized_scratch_bytes(std::size_t world, const QuantizedOptions& options);

// Another communicator whose all_gather and reduce_scatter send [Note: block codes] instead of fp32 or 16-bit elements:
// qwZ and qgZ of Wang et al., "ZeRO++", 2023 (arXiv:2306.10209). With n elements in a row each sends
// (N-1) * message_bytes(code, n). Both change bits; both give every rank the same ones.
//
// - all_gather: every row is coded and decoded, this rank's as well, so that all ranks compute with the same weights.
//   What lies in row r must therefore be a copy: an fp32 parameter, or a bf16 parameter that its remainder completes to
//   the master, would be lost.
// - reduce_scatter: what rank j has for row r is coded once and sent to rank r (all_to_all), which adds what it got in
//   rank order, in fp32, and rounds once; its own part is coded too, so that the result depends on the ranks alone. A
//   block in which one rank has a NaN or an infinity becomes NaN.
// - Everything else, other element types, and a world of one rank pass through unchanged.
//
// It cannot know whether a tensor may be rounded: hand it to parameter groups and gradient reducers, and `base` to
// whatever else gathers. Owns nothing: `base`, `math` and `scratch`, which lies where `math` works, outlive it and what
// is queued. Threads and order as in the port; `math` is used by the work of the stream.
class QuantizedCommunicator final : public ForwardingCommunicator {
 public:
  // Requires: scratch of at least quantized_scratch_bytes(), at a multiple of 4 bytes.
  QuantizedCommunicator(Communicator& base, QuantizedOptions options, ShardMath& math, std::span<std::byte> scratch);

  void all_gather(Stream& stream, TensorSpan full) override;
  void reduce_scatter(Stream& stream, TensorSpan full) override;

 private:
  bool passes(const std::optional<BlockCode>& code, const TensorSpan& full) const;
  TensorSpan messages(BlockCode code, std::size_t numel) const;

  const QuantizedOptions options_;
  ShardMath& math_;
  const TensorSpan sum_;              // [kQuantizedChunk] in fp32, where gradients are coded
  const std::span<std::byte> coded_;  // [world, message of a chunk]
};

}  // namespace strata::comm
