// Which direction the next request of a drive takes when both wait.
#pragma once

#include <cstdint>
#include <optional>

#include "nvme/io_request.h"

namespace strata::nvme {

// What waits to be sent.
struct IoWaiting {
  bool demand = false;    // reads that somebody waits for
  bool prefetch = false;  // other reads
  bool write = false;

  bool any() const { return demand || prefetch || write; }
};

// Without bursts reads go first, but of kFairShare requests at least one is a write while a write waits.
// With bursts the directions take turns of `burst_bytes`: a turn ends when that many bytes were sent and the other
// direction waits, or when nothing of its own waits. A demand read ends a turn of writes at once, but every turn sends
// at least one request, so neither direction starves. Not thread-safe.
class IoTurns {
 public:
  static constexpr unsigned kFairShare = 8;

  // 0: no bursts.
  explicit IoTurns(std::uint64_t burst_bytes) : burst_bytes_(burst_bytes) {}

  // Nothing when nothing waits.
  std::optional<IoOp> next(const IoWaiting& waiting);
  // What was sent after next(): a request of that direction.
  void sent(IoOp op, std::uint64_t bytes);

 private:
  bool turn_is_over(const IoWaiting& waiting) const;

  const std::uint64_t burst_bytes_;
  unsigned reads_in_a_row_ = 0;  // while a write waited
  IoOp turn_ = IoOp::Read;
  std::uint64_t sent_bytes_ = 0;  // of this turn
};

}  // namespace strata::nvme
