#include "nvme/io_meter.h"

namespace strata::nvme {

void IoMeter::count_bytes(IoOp op, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  side(op).bytes += bytes;
}

void IoMeter::begin(IoOp op) {
  const std::lock_guard lock(mutex_);
  ++requests_;
  if (side(op).in_flight++ == 0) side(op).since = Clock::now();
}

void IoMeter::end(IoOp op) {
  const std::lock_guard lock(mutex_);
  if (--side(op).in_flight == 0) side(op).busy += Clock::now() - side(op).since;
}

double IoMeter::busy_seconds(const Side& side) {
  Clock::duration busy = side.busy;
  if (side.in_flight > 0) busy += Clock::now() - side.since;
  return std::chrono::duration<double>(busy).count();
}

BlobStoreStats IoMeter::stats() const {
  const std::lock_guard lock(mutex_);
  const Side& reads = sides_[static_cast<std::size_t>(IoOp::Read)];
  const Side& writes = sides_[static_cast<std::size_t>(IoOp::Write)];
  return {reads.bytes, writes.bytes, requests_, busy_seconds(reads), busy_seconds(writes)};
}

}  // namespace strata::nvme
