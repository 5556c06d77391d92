#include "core/slot_pool.h"

#include <string>
#include <utility>

#include "core/bytes.h"
#include "core/error.h"

namespace strata {

SlotPool::SlotPool(Buffer region, std::size_t slot_bytes) : region_(std::move(region)), slot_bytes_(slot_bytes) {
  STRATA_EXPECTS(slot_bytes > 0 && slot_bytes % kPageBytes == 0,
                 "slots of " + std::to_string(slot_bytes) + " bytes are not whole pages");
  slots_ = region_.bytes() / slot_bytes;
  taken_.assign(slots_, false);
  free_.reserve(slots_);
  for (std::size_t slot = slots_; slot > 0; --slot) free_.push_back(slot - 1);  // slot 0 is lent first
}

std::optional<std::size_t> SlotPool::try_acquire() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return std::nullopt;
  const std::size_t slot = free_.back();
  free_.pop_back();
  taken_[slot] = true;
  return slot;
}

void SlotPool::release(std::size_t slot) {
  const std::lock_guard lock(mutex_);
  STRATA_EXPECTS(slot < slots_ && taken_[slot], "slot " + std::to_string(slot) + " is not on loan");
  taken_[slot] = false;
  free_.push_back(slot);
}

std::span<std::byte> SlotPool::slot(std::size_t index) const {
  STRATA_EXPECTS(index < slots_,
                 "slot " + std::to_string(index) + " of a pool of " + std::to_string(slots_) + " slots");
  return region_.span().subspan(index * slot_bytes_, slot_bytes_);
}

std::size_t SlotPool::free_slots() const {
  const std::lock_guard lock(mutex_);
  return free_.size();
}

}  // namespace strata
