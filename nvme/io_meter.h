// Counts what a store moves and how long its drives are busy.
#pragma once

#include <array>
#include <chrono>
#include <mutex>

#include "core/blob_store.h"
#include "nvme/io_request.h"

namespace strata::nvme {

// Shared by the queues of one store, so that busy time is not counted once per path. Thread-safe.
class IoMeter {
 public:
  void count_bytes(IoOp op, std::uint64_t bytes);
  // Around each request sent to a backend.
  void begin(IoOp op);
  void end(IoOp op);
  BlobStoreStats stats() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Side {
    std::uint64_t bytes = 0;
    std::uint64_t in_flight = 0;
    Clock::duration busy{};
    Clock::time_point since;  // meaningful while in_flight > 0
  };
  Side& side(IoOp op) { return sides_[static_cast<std::size_t>(op)]; }
  static double busy_seconds(const Side& side);

  mutable std::mutex mutex_;
  std::array<Side, 2> sides_;   // guarded by mutex_; indexed by IoOp
  std::uint64_t requests_ = 0;  // guarded by mutex_
};

}  // namespace strata::nvme
