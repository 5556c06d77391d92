// Port: collectives among the data-parallel ranks.
#pragma once

#include <cstddef>
#include <span>

#include "core/buffer.h"
#include "core/device.h"

namespace strata {

// Collectives are queued on the stream given, in place on the flat layout: N = world(), r = rank().
// One issuer thread per communicator; every rank issues the same collectives in the same order.
// Failures travel in the stream (CommError).
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::size_t rank() const = 0;
  virtual std::size_t world() const = 0;
  // `full` is [N, numel/N]; row r holds this rank's shard before, all rows are filled after.
  virtual void all_gather(Stream& stream, TensorSpan full) = 0;
  // `full` is [N, numel/N]; afterwards row r holds the sum over ranks of row r, other rows are undefined.
  virtual void reduce_scatter(Stream& stream, TensorSpan full) = 0;
  // Sums over ranks in rank order; blocks until done. For norms, token counts and agreement checks.
  virtual void all_reduce_sum(std::span<double> values) = 0;
  virtual void barrier() = 0;
};

}  // namespace strata
