// SlotPool: equal slots cut from one region, so that free-order reuse cannot fragment.
#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "core/buffer.h"

namespace strata {

// Ownership: the pool owns the region; a slot index is a loan returned with release(). Thread-safe.
// Never blocks: waiting is the business of whoever knows the order of the waiters.
class SlotPool {
 public:
  // Takes `region` and cuts floor(region.bytes() / slot_bytes) slots. Requires: slot_bytes is a multiple of kPageBytes.
  SlotPool(Buffer region, std::size_t slot_bytes);

  std::optional<std::size_t> try_acquire();
  void release(std::size_t slot);

  std::span<std::byte> slot(std::size_t index) const;
  std::size_t slots() const { return slots_; }
  std::size_t slot_bytes() const { return slot_bytes_; }
  std::size_t free_slots() const;
  // The memory behind the slots, for an I/O backend that registers it.
  std::span<std::byte> region() const { return region_.span(); }

 private:
  Buffer region_;
  std::size_t slot_bytes_;
  std::size_t slots_;
  mutable std::mutex mutex_;
  std::vector<std::size_t> free_;  // guarded by mutex_; last in, first out, so that warm memory is reused
  std::vector<bool> taken_;        // guarded by mutex_
};

}  // namespace strata
