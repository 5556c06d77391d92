#include "nvme/io_turns.h"

namespace strata::nvme {

std::optional<IoOp> IoTurns::next(const IoWaiting& waiting) {
  if (!waiting.any()) return std::nullopt;
  const bool read = waiting.demand || waiting.prefetch;
  if (!read || !waiting.write) {
    reads_in_a_row_ = 0;
    return read ? IoOp::Read : IoOp::Write;
  }
  if (burst_bytes_ == 0) {
    if (++reads_in_a_row_ < kFairShare) return IoOp::Read;
    reads_in_a_row_ = 0;
    return IoOp::Write;
  }
  if (!turn_is_over(waiting)) return turn_;
  return turn_ == IoOp::Read ? IoOp::Write : IoOp::Read;
}

bool IoTurns::turn_is_over(const IoWaiting& waiting) const {
  return sent_bytes_ >= burst_bytes_ || (turn_ == IoOp::Write && waiting.demand && sent_bytes_ > 0);
}

void IoTurns::sent(IoOp op, std::uint64_t bytes) {
  if (op != turn_) {
    turn_ = op;
    sent_bytes_ = 0;
  }
  sent_bytes_ += bytes;
}

}  // namespace strata::nvme
