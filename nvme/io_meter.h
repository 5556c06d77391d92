// Counts what a store and its drives move and how long they are busy.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <mutex>
#include <string>

#include "core/blob_store.h"
#include "nvme/busy_time.h"
#include "nvme/io_request.h"

namespace strata::nvme {

class IoMeter;

// One drive of a store. Rates are taken over windows of kWindowBytes and the busy time of their direction, so pauses do
// not count; time in which reads and writes are in flight counts for both. Thread-safe.
class DriveMeter {
 public:
  // Large enough that one stall of a drive does not make a rate, small against any write cache.
  static constexpr std::uint64_t kWindowBytes = std::uint64_t{256} << 20;

  // Made by IoMeter::add_drive().
  DriveMeter(IoMeter& store, std::string path) : store_(store), path_(std::move(path)) {}

  // Around each request sent to a backend; `bytes` is what it moved.
  void begin(IoOp op);
  void end(IoOp op, std::uint64_t bytes);

 private:
  friend class IoMeter;
  struct Side {
    std::uint64_t bytes = 0;
    BusyTime busy;
    std::uint64_t window_bytes = 0;  // of the window that is being filled
    double window_begin = 0;         // in busy seconds
    double rate = 0;                 // of the newest full window, bytes per second
    double best_rate = 0;
  };
  Side& side(IoOp op) { return sides_[static_cast<std::size_t>(op)]; }
  DriveStats stats(BusyTime::Clock::time_point now) const;

  IoMeter& store_;
  const std::string path_;
  std::array<Side, 2> sides_;  // guarded by the store's mutex; indexed by IoOp
  BusyTime busy_;              // guarded by the store's mutex
};

// A store of one or several drives: time in which two of them are busy counts once. Thread-safe.
class IoMeter {
 public:
  using Clock = BusyTime::Clock;

  // `now` is replaced by tests.
  explicit IoMeter(std::function<Clock::time_point()> now = &Clock::now) : now_(std::move(now)) {}

  // The result lives as long as this object.
  DriveMeter& add_drive(std::string path);
  // As the store's callers see it.
  void count_bytes(IoOp op, std::uint64_t bytes);
  BlobStoreStats stats() const;

 private:
  friend class DriveMeter;
  struct Side {
    std::uint64_t bytes = 0;
    BusyTime busy;
  };
  Side& side(IoOp op) { return sides_[static_cast<std::size_t>(op)]; }

  const std::function<Clock::time_point()> now_;
  mutable std::mutex mutex_;       // one for all drives, so that moments come in their order
  std::array<Side, 2> sides_;      // guarded by mutex_; indexed by IoOp
  std::uint64_t requests_ = 0;     // guarded by mutex_
  std::deque<DriveMeter> drives_;  // guarded by mutex_
};

}  // namespace strata::nvme
