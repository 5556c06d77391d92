// Any offset, length and address on a queue whose file may ask for aligned ones.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <unordered_map>

#include "nvme/io_queue.h"

namespace strata::nvme {

// Serialises read-modify-write of single blocks. Thread-safe; nobody blocks.
class BlockLocks {
 public:
  // Runs `fn` once `block` is free: now, or on the thread that releases it. Ends with release().
  void acquire(std::uint64_t block, std::function<void()> fn);
  void release(std::uint64_t block);

 private:
  std::mutex mutex_;
  // A present key is a taken block; the value holds who waits for it, first come first served. Guarded by mutex_.
  std::unordered_map<std::uint64_t, std::deque<std::function<void()>>> taken_;
};

// One queue and one file. Aligned parts of a transfer go straight between the caller's memory and the file. The rest
// goes through one bounce buffer per part, at most kBounceBytes at a time: blocks at the edges of a range that are not
// covered are read, patched and written back. Never touches memory outside the caller's span nor other bytes of the
// extent. Disjoint ranges may share a block. Thread-safe.
class AlignedIo {
 public:
  static constexpr std::uint64_t kBounceBytes = std::uint64_t{1} << 20;

  AlignedIo(const IoQueue::BackendMaker& make, IoQueueOptions options, DriveMeter& meter)
      : queue_(make, options, meter) {}

  // Requires: the range lies in the extent. The events complete when every part has; `urgency` is for reads.
  Event read(const Extent& extent, std::uint64_t offset, std::span<std::byte> destination, IoUrgency urgency);
  Event write(const Extent& extent, std::uint64_t offset, std::span<const std::byte> source);

 private:
  class Bounce;
  Event transfer(const IoTransfer& whole);
  Event bounce(const IoTransfer& part);

  BlockLocks locks_;  // outlives the queue, whose last completions release locks
  IoQueue queue_;
};

}  // namespace strata::nvme
