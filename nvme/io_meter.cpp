#include "nvme/io_meter.h"

#include <algorithm>
#include <utility>

namespace strata::nvme {

void DriveMeter::begin(IoOp op) {
  const std::lock_guard lock(store_.mutex_);
  const BusyTime::Clock::time_point now = store_.now_();
  side(op).busy.begin(now);
  busy_.begin(now);
  store_.side(op).busy.begin(now);
  ++store_.requests_;
}

void DriveMeter::end(IoOp op, std::uint64_t bytes) {
  const std::lock_guard lock(store_.mutex_);
  const BusyTime::Clock::time_point now = store_.now_();
  Side& one = side(op);
  one.busy.end(now);
  busy_.end(now);
  store_.side(op).busy.end(now);
  one.bytes += bytes;
  one.window_bytes += bytes;
  const double busy = one.busy.seconds(now);
  if (one.window_bytes < kWindowBytes || busy <= one.window_begin) return;
  one.rate = static_cast<double>(one.window_bytes) / (busy - one.window_begin);
  one.best_rate = std::max(one.best_rate, one.rate);
  one.window_bytes = 0;
  one.window_begin = busy;
}

DriveStats DriveMeter::stats(BusyTime::Clock::time_point now) const {
  const Side& reads = sides_[static_cast<std::size_t>(IoOp::Read)];
  const Side& writes = sides_[static_cast<std::size_t>(IoOp::Write)];
  return {.path = path_,
          .bytes_read = reads.bytes,
          .bytes_written = writes.bytes,
          .read_busy_seconds = reads.busy.seconds(now),
          .write_busy_seconds = writes.busy.seconds(now),
          .busy_seconds = busy_.seconds(now),
          .read_rate = reads.rate,
          .write_rate = writes.rate,
          .best_write_rate = writes.best_rate};
}

DriveMeter& IoMeter::add_drive(std::string path) {
  const std::lock_guard lock(mutex_);
  return drives_.emplace_back(*this, std::move(path));
}

void IoMeter::count_bytes(IoOp op, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  side(op).bytes += bytes;
}

BlobStoreStats IoMeter::stats() const {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = now_();
  const Side& reads = sides_[static_cast<std::size_t>(IoOp::Read)];
  const Side& writes = sides_[static_cast<std::size_t>(IoOp::Write)];
  BlobStoreStats stats{reads.bytes, writes.bytes, requests_, reads.busy.seconds(now), writes.busy.seconds(now)};
  for (const DriveMeter& drive : drives_) stats.drives.push_back(drive.stats(now));
  return stats;
}

}  // namespace strata::nvme
