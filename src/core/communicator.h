// Port: collectives among the data-parallel ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>

#include "core/buffer.h"
#include "core/device.h"

namespace strata {

// What this rank has sent to others since the start. Payload only.
struct CommStats {
  std::uint64_t bytes_sent = 0;     // by collectives on streams
  std::uint64_t control_bytes = 0;  // by those that block
  double busy_seconds = 0;          // a collective on a stream was running
};

// N = world(), r = rank(). Every rank issues the same collectives in the same order.
//
// Two channels that do not order each other. Collectives on a stream are queued, run in stream order and work in place
// on the flat layout: all of them go to one stream. The others block the thread that calls them, which is always the
// same, and work on host memory. Failures are CommErrors; of queued ones they travel in the stream. A communicator and
// the tensors live until the stream is past what was queued, or has ended: after a failure too.
//
// Where a device runs the queued ones, one that it has begun may fail and yet end as if it had not. Every call that
// follows throws then, also those that block: results of a stream count once it has been waited for and a call that
// blocks has begun after that. What such a call brings comes from ranks of which the same holds.
//
// The result of a sum depends on the ranks alone: it is added in rank order, in fp32 for 16-bit types, and rounded
// once.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::size_t rank() const = 0;
  virtual std::size_t world() const = 0;

  // `full` is [N, numel/N], numel a multiple of N, until the stream is past it.
  // Row r holds this rank's shard before, all rows are filled after. Sends (N-1)/N of its bytes.
  virtual void all_gather(Stream& stream, TensorSpan full) = 0;
  // Afterwards row r holds the sum over ranks of row r, other rows are undefined. Sends (N-1)/N of its bytes.
  virtual void reduce_scatter(Stream& stream, TensorSpan full) = 0;
  // Afterwards row j holds what rank j had in its row r. Sends (N-1)/N of its bytes.
  virtual void all_to_all(Stream& stream, TensorSpan full) = 0;

  // For norms, token counts, agreement and files.
  virtual void all_reduce_sum(std::span<double> values) = 0;
  // `all` is [N, n]: row r holds this rank's values before, all rows are filled after.
  virtual void all_gather_values(std::span<double> all) = 0;
  virtual void broadcast(std::span<std::byte> bytes, std::size_t root) = 0;
  virtual void barrier() = 0;

  // Any thread: what is under way and all that comes fails with `reason`, on this rank at least. For whoever learns
  // that another rank is lost.
  virtual void abort(std::exception_ptr reason) = 0;
  virtual CommStats stats() const = 0;
};

}  // namespace strata
