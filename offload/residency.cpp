// What the store does with its slots: which page goes, what is read ahead, what is written behind.
#include <algorithm>

#include "offload/shard_store.h"

namespace strata::offload {
namespace {

// Evictions that the prefetcher keeps under way at once: enough to keep a drive's queue busy, few enough that what it
// throws out was really the farthest.
constexpr std::size_t kMaxLeaving = 8;

std::uint64_t pack(PieceId piece) {
  return (static_cast<std::uint64_t>(piece.shard.index) << 32) | piece.piece;
}
PieceId unpack(std::uint64_t key) {
  return {{static_cast<std::uint32_t>(key >> 32)}, static_cast<std::uint32_t>(key)};
}

}  // namespace

bool ShardStore::kept(Lock&, PieceId piece) const {
  return (schedule_ && schedule_->keeps(piece)) || (following_ && following_->keeps(piece));
}

bool ShardStore::wanted_soon(Lock& lock, PieceId piece) const {
  return kept(lock, piece) || (cursor_.next_use(piece) < front_);
}

// A caller rather waits for a page on its way out than for the cache, or the window, to be emptied. When nothing is on
// its way, any page may go, so that every caller ends.
std::optional<PieceId> ShardStore::victim_for_caller(Lock& lock) const {
  if (evictable_.empty()) return std::nullopt;
  const PieceId victim = unpack(evictable_.rbegin()->second);
  if (leaving_ > 0 && wanted_soon(lock, victim)) return std::nullopt;
  return victim;
}

// [Note: lanes that wait]. The victim is the page whose next use is farthest, so all others are used earlier, too.
bool ShardStore::others_come_first(Lock&, const Caller& caller) const {
  if (lanes_pass_ || evictable_.empty()) return false;
  return cursor_.next_use(unpack(evictable_.rbegin()->second)) < caller.yields_before;
}

// A prefetch evicts neither what is used before the page that it serves, nor what is kept.
std::optional<PieceId> ShardStore::victim_for_prefetch(Lock& lock, std::uint64_t wanted_at) const {
  if (evictable_.empty()) return std::nullopt;
  const PieceId victim = unpack(evictable_.rbegin()->second);
  if (kept(lock, victim)) return std::nullopt;
  // A page that is only written next is worth nothing until then.
  const std::uint64_t next = cursor_.next_use(victim);
  if (next <= wanted_at && reads(schedule_->at(next).access)) return std::nullopt;
  return victim;
}

// A free slot, or that of `victim` when it can go at once.
std::optional<std::size_t> ShardStore::take_slot(Lock& lock, std::optional<PieceId> victim) {
  if (auto slot = slots_.try_acquire()) return slot;
  if (!victim || page(*victim).dirty) return std::nullopt;
  drop(lock, *victim);
  return slots_.try_acquire();
}

// A blocked caller needs one slot: as many pages leave as callers wait, which does not empty the cache.
void ShardStore::make_room_for_callers(Lock& lock, Transfers& transfers) {
  while (leaving_ < queue_.size()) {
    const std::optional<PieceId> victim = victim_for_caller(lock);
    if (!victim || !page(*victim).dirty) return;
    start_leaving(lock, *victim, AfterWrite::Drop, transfers);
  }
}

void ShardStore::start_arrival(Lock&, PieceId piece, std::size_t slot, IoUrgency urgency, Transfers& transfers) {
  Page& p = page(piece);
  p.slot = slot;
  p.state = State::Arriving;
  p.arrival = EventSource();
  p.arrival.submit();  // the transfer is decided: it starts before this call's caller returns
  ++in_flight_;
  transfers.push_back({piece, Transfer::Direction::In, urgency});
}

// Requires: Resident, dirty, without pins.
void ShardStore::start_leaving(Lock& lock, PieceId piece, AfterWrite after, Transfers& transfers) {
  Page& p = page(piece);
  remove_evictable(lock, piece);
  p.state = State::Leaving;
  p.dropping = after == AfterWrite::Drop;
  ++leaving_;
  ++in_flight_;
  if (!cacheable(piece)) ++uncached_leaving_;
  transfers.push_back({piece, Transfer::Direction::Out, IoUrgency::Demand});
}

// A Resident page without pins: cached, written behind, written through, or dropped.
void ShardStore::settle(Lock& lock, PieceId piece, Transfers& transfers) {
  Page& p = page(piece);
  if (failure_) {
    make_evictable(lock, piece);
  } else if (!cacheable(piece)) {
    p.dirty ? start_leaving(lock, piece, AfterWrite::Drop, transfers) : drop(lock, piece);
  } else if (p.dirty && schedule_ && schedule_->planned() && !wanted_soon(lock, piece)) {
    // It must go before it is used again: now, while the drive may be idle, and not when a read waits for its slot.
    start_leaving(lock, piece, AfterWrite::Keep, transfers);
  } else {
    make_evictable(lock, piece);
  }
}

void ShardStore::drop(Lock& lock, PieceId piece) {
  remove_evictable(lock, piece);
  Page& p = page(piece);
  slots_.release(p.slot);
  p.state = State::Absent;
  prefetched_ = std::min(prefetched_, cursor_.next_use(piece));
}

void ShardStore::make_evictable(Lock&, PieceId piece) {
  Page& p = page(piece);
  // From where the policy looks: what a lane that is ahead has done is not a next use.
  const std::uint64_t next = cursor_.next_use(piece);
  const std::uint64_t from = next == Schedule::kNever ? cursor_.position() : next;
  p.rank = policy_->rank({piece, schedule_.get(), from, following_.get(), tick_});
  evictable_.emplace(p.rank, pack(piece));
}

void ShardStore::remove_evictable(Lock&, PieceId piece) {
  evictable_.erase({page(piece).rank, pack(piece)});
}

std::uint64_t ShardStore::note_access(Lock& lock, PieceId piece, Lane lane) {
  ++tick_;
  if (!schedule_ || schedule_->size() == 0) return Schedule::kNever;
  std::uint64_t position = Schedule::kNever;
  const Cursor::Followed followed = cursor_.follow(piece, lane, [&](std::uint64_t at) {
    if (at < front_) ahead_ -= window_pages(lock, at);
    position = at;  // the last one is this access
  });
  if (followed != Cursor::Followed::Next) ++stats_.off_schedule;
  if (followed == Cursor::Followed::Stray) return Schedule::kNever;
  if (lane == Lane::Gathers) lanes_pass_ = false;
  // What skipped accesses would have brought in is not there.
  if (followed == Cursor::Followed::Skipped) prefetched_ = cursor_.position();
  extend_window(lock);
  return position;
}

// The window ends before the first access that would exceed the look-ahead.
void ShardStore::extend_window(Lock& lock) {
  const std::uint64_t position = cursor_.position();
  front_ = std::max(front_, position);
  const std::uint64_t most = look_ahead_bytes_ / slots_.slot_bytes();
  while (most > 0 && front_ < position + schedule_->size()) {
    const std::uint64_t pages = cursor_.made(front_) ? 0 : window_pages(lock, front_);
    if (ahead_ + pages > most) break;
    ahead_ += pages;
    ++front_;
  }
  prefetched_ = std::max(prefetched_, position);
}

// What the access at `position` takes of the look-ahead: a slot, unless its page is kept, no cached page is needed, or
// another lane leaves the page to it.
std::uint64_t ShardStore::window_pages(Lock& lock, std::uint64_t position) const {
  const PieceId piece = schedule_->at(position).piece;
  const bool counts = paged(piece) && cacheable(piece) && !kept(lock, piece) && !schedule_->handed_over(position);
  return counts ? 1 : 0;
}

// Starts reads of what the window still lacks, as far as free slots and pages used later than that allow.
void ShardStore::prefetch(Lock& lock, Transfers& transfers) {
  if (!schedule_ || schedule_->size() == 0 || look_ahead_bytes_ == 0 || failure_) return;
  if (!queue_.empty() || early_ > 0) return;
  std::size_t without_slot = 0;  // reads of the window that wait for a page to leave
  for (std::uint64_t at = prefetched_; at < front_; ++at) {
    if (without_slot == 0) prefetched_ = at;
    const ScheduledAccess& access = schedule_->at(at);
    if (cursor_.made(at) || !reads(access.access) || !paged(access.piece) || !cacheable(access.piece)) continue;
    Page& p = page(access.piece);
    if (p.state == State::Leaving) p.dropping = false;  // stays after all
    if (p.state != State::Absent) continue;
    // A page that is written first must not be read now: the bytes would be thrown away.
    if (cursor_.next_use(access.piece) != at) continue;
    const std::optional<PieceId> victim = victim_for_prefetch(lock, at);
    if (const auto slot = take_slot(lock, victim)) {
      start_arrival(lock, access.piece, *slot, IoUrgency::Prefetch, transfers);
      continue;
    }
    // One page leaves per read that waits: this runs again at every access and completion, so asking for more each time
    // would empty the cache while the first page is still being written.
    if (!victim) return;
    if (leaving_ <= without_slot) start_leaving(lock, *victim, AfterWrite::Drop, transfers);
    if (++without_slot >= kMaxLeaving) return;
  }
  if (without_slot == 0) prefetched_ = std::max(prefetched_, front_);
}

void ShardStore::set_schedule(std::shared_ptr<const Schedule> schedule, std::shared_ptr<const Schedule> following) {
  Transfers transfers;
  {
    Lock lock(mutex_);
    schedule_ = std::move(schedule);
    following_ = std::move(following);
    cursor_.start(schedule_.get());
    front_ = prefetched_ = cursor_.position();
    ahead_ = 0;
    if (schedule_ && schedule_->size() > 0) extend_window(lock);
    std::vector<std::uint64_t> cached;
    for (const auto& [rank, key] : evictable_) cached.push_back(key);
    evictable_.clear();
    for (const std::uint64_t key : cached) make_evictable(lock, unpack(key));
    prefetch(lock, transfers);
    changed_.notify_all();  // nobody needs to wait for gathers of another schedule
  }
  start(transfers);
}

void ShardStore::let_lanes_pass() {
  const Lock lock(mutex_);
  lanes_pass_ = true;
  changed_.notify_all();
}

void ShardStore::set_look_ahead(std::uint64_t bytes) {
  Transfers transfers;
  {
    Lock lock(mutex_);
    look_ahead_bytes_ = bytes;
    front_ = cursor_.position();
    ahead_ = 0;
    if (schedule_ && schedule_->size() > 0) extend_window(lock);
    prefetch(lock, transfers);
  }
  start(transfers);
}

}  // namespace strata::offload
