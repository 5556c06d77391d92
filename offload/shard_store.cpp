#include "offload/shard_store.h"

#include <chrono>
#include <optional>

#include "core/bytes.h"
#include "core/error.h"

namespace strata::offload {
namespace {

using Clock = std::chrono::steady_clock;

// An access that comes this much later in the schedule still moves the cursor; one farther away is a stray.
constexpr std::uint64_t kResyncDistance = 64;
// Evictions that the prefetcher keeps under way at once: enough to keep a drive's queue busy, few enough that what it
// throws out was really the farthest.
constexpr std::size_t kMaxLeaving = 8;

std::uint64_t pack(PieceId piece) {
  return (static_cast<std::uint64_t>(piece.shard.index) << 32) | piece.piece;
}
PieceId unpack(std::uint64_t key) {
  return {{static_cast<std::uint32_t>(key >> 32)}, static_cast<std::uint32_t>(key)};
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

ShardStore::ShardStore(std::array<Tier*, kTiers> tiers, SlotPool& slots, std::unique_ptr<EvictionPolicy> policy,
                       ShardStoreOptions options)
    : tiers_(tiers), slots_(slots), policy_(std::move(policy)), options_(options) {
  STRATA_EXPECTS(slots_.slots() >= kMinSlots, "the staging pool has too few slots");
}

ShardStore::~ShardStore() {
  Lock lock(mutex_);
  schedule_ = nullptr;  // no more prefetching
  changed_.wait(lock, [this] { return in_flight_ == 0 && late_pins_ == 0; });
}

ShardId ShardStore::add(ShardSpec spec) {
  Tier* tier = tiers_[static_cast<std::size_t>(spec.home)];
  STRATA_EXPECTS(tier != nullptr, "no such tier in this store");
  const MemoryTag tag = spec.kind == ShardKind::Param  ? MemoryTag::Param
                        : spec.kind == ShardKind::Grad ? MemoryTag::Grad
                                                       : MemoryTag::OptimState;
  Shard shard;
  const std::uint64_t bytes = spec.numel * bytes_of(spec.dtype);
  shard.home = tier->create(spec.name, bytes, tag);
  shard.tier = tier;
  shard.host = tier->host_address(shard.home);
  shard.pages = std::vector<Page>(ceil_div(bytes, slots_.slot_bytes()));
  shard.spec = std::move(spec);
  shards_.push_back(std::move(shard));
  return {static_cast<std::uint32_t>(shards_.size() - 1)};
}

std::uint32_t ShardStore::pieces(ShardId shard) const {
  return static_cast<std::uint32_t>(shards_.at(shard.index).pages.size());
}

PieceRange ShardStore::range(PieceId piece) const {
  const ShardSpec& spec = shards_.at(piece.shard.index).spec;
  const std::uint64_t full = piece_numel(spec.dtype);
  const std::uint64_t first = full * piece.piece;
  return {first, std::min(full, spec.numel - first)};
}

std::size_t ShardStore::bytes_of_piece(PieceId piece) const {
  return range(piece).numel * bytes_of(shards_[piece.shard.index].spec.dtype);
}

std::byte* ShardStore::device_address(ShardId shard) const {
  const Shard& s = shards_.at(shard.index);
  return s.tier->device_address(s.home);
}

Pin ShardStore::acquire(PieceId piece, Access access) {
  Shard& shard = shards_.at(piece.shard.index);
  Pin pin;
  pin.piece_ = piece;
  pin.access_ = access;
  if (shard.host != nullptr) {
    pin.bytes_ = {shard.host + offset_bytes(piece), bytes_of_piece(piece)};
    return pin;
  }
  Transfers transfers;
  Lock lock(mutex_);
  std::optional<Clock::time_point> blocked;
  note_access(lock, piece);
  while (!try_pin(lock, piece, access, pin, transfers)) {
    if (!blocked) {
      blocked = Clock::now();
      // Already before the lock is given up below: the slot that then comes free is this caller's, not the
      // prefetcher's. Not undone when try_pin() throws, as a failed store prefetches no more.
      ++waiting_;
    }
    if (!transfers.empty()) {
      lock.unlock();
      start(transfers);
      transfers.clear();
      lock.lock();
      continue;
    }
    changed_.wait(lock);
  }
  if (blocked) {
    --waiting_;
    stats_.stall_seconds += seconds_since(*blocked);
  }
  prefetch(lock, transfers);
  lock.unlock();
  start(transfers);
  return pin;
}

// Pins the page, or returns false when the caller must wait for a change.
bool ShardStore::try_pin(Lock& lock, PieceId piece, Access access, Pin& pin, Transfers& transfers) {
  throw_if_failed(lock);
  Page& p = page(piece);
  const bool exclusive = writes(access);
  if (p.writer || (exclusive && (p.pins > 0 || p.state == State::Leaving))) return false;
  if (p.state == State::Absent) {
    // A blocked caller needs one slot; it waits for the first page on its way out instead of emptying the cache.
    const std::optional<std::size_t> slot = take_slot(lock, std::nullopt, 1, transfers);
    if (!slot) return false;
    if (reads(access)) {
      ++stats_.page_misses;
      start_arrival(lock, piece, *slot, IoUrgency::Demand, transfers);
    } else {
      p.slot = *slot;
      p.state = State::Resident;
    }
  } else {
    ++stats_.page_hits;
    if (p.state == State::Resident && p.pins == 0) remove_evictable(lock, piece);
  }
  ++p.pins;
  p.writer = exclusive;
  pin.store_ = this;
  pin.bytes_ = slots_.slot(p.slot).first(bytes_of_piece(piece));
  pin.ready_ = p.state == State::Arriving ? p.arrival.event() : Event();
  return true;
}

// A free slot, or one whose page can go at once. When the page that should go is dirty, starts writing it, unless
// `most_leaving` pages are on their way out already, and returns nothing. `wanted_at`: the position that a prefetch
// serves, which must not evict what is used before it; empty for a demand.
std::optional<std::size_t> ShardStore::take_slot(Lock& lock, std::optional<std::uint64_t> wanted_at,
                                                 std::size_t most_leaving, Transfers& transfers) {
  if (auto slot = slots_.try_acquire()) return slot;
  if (evictable_.empty()) return std::nullopt;
  const PieceId victim = unpack(evictable_.rbegin()->second);
  if (wanted_at && schedule_->next_use(victim, position_) <= *wanted_at) return std::nullopt;
  Page& p = page(victim);
  if (!p.dirty) {
    drop(lock, victim);
    return slots_.try_acquire();
  }
  if (leaving_ < most_leaving) start_leaving(lock, victim, transfers);
  return std::nullopt;
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
void ShardStore::start_leaving(Lock& lock, PieceId piece, Transfers& transfers) {
  Page& p = page(piece);
  remove_evictable(lock, piece);
  p.state = State::Leaving;
  p.dropping = true;
  ++leaving_;
  ++in_flight_;
  if (!shards_[piece.shard.index].tier->cacheable()) ++uncached_leaving_;
  transfers.push_back({piece, Transfer::Direction::Out, IoUrgency::Demand});
}

// A Resident page without pins: cached, written through, or dropped, by its tier.
void ShardStore::settle(Lock& lock, PieceId piece, Transfers& transfers) {
  Page& p = page(piece);
  if (shards_[piece.shard.index].tier->cacheable() || failure_) {
    make_evictable(lock, piece);
  } else if (p.dirty) {
    start_leaving(lock, piece, transfers);
  } else {
    drop(lock, piece);
  }
}

void ShardStore::drop(Lock& lock, PieceId piece) {
  remove_evictable(lock, piece);
  Page& p = page(piece);
  slots_.release(p.slot);
  p.state = State::Absent;
}

void ShardStore::make_evictable(Lock&, PieceId piece) {
  Page& p = page(piece);
  p.rank = policy_->rank({piece, schedule_.get(), position_, following_.get(), tick_});
  evictable_.emplace(p.rank, pack(piece));
}

void ShardStore::remove_evictable(Lock&, PieceId piece) {
  evictable_.erase({page(piece).rank, pack(piece)});
}

void ShardStore::throw_if_failed(Lock&) const {
  if (failure_) std::rethrow_exception(failure_);
}

void ShardStore::note_access(Lock&, PieceId piece) {
  ++tick_;
  if (!schedule_ || schedule_->size() == 0) return;
  if (schedule_->at(position_).piece == piece) {
    ++position_;
    return;
  }
  ++stats_.off_schedule;
  const std::uint64_t next = schedule_->next_use(piece, position_);
  if (next != Schedule::kNever && next - position_ <= kResyncDistance) position_ = next + 1;
}

// Starts reads of what the schedule wants next, as far as the window, free slots and pages used later than that allow.
void ShardStore::prefetch(Lock& lock, Transfers& transfers) {
  if (!schedule_ || schedule_->size() == 0 || options_.look_ahead_bytes == 0 || waiting_ > 0 || failure_) return;
  std::uint64_t window = 0;
  std::size_t without_slot = 0;  // reads of the window that wait for a page to leave
  for (std::uint64_t at = position_; at < position_ + schedule_->size(); ++at) {
    const ScheduledAccess& access = schedule_->at(at);
    const Shard& shard = shards_[access.piece.shard.index];
    if (!shard.tier->cacheable()) continue;
    window += slots_.slot_bytes();
    if (window > options_.look_ahead_bytes) return;
    Page& p = page(access.piece);
    if (p.state == State::Leaving && reads(access.access) && std::exchange(p.dropping, false))
      --leaving_;  // stays after all
    if (p.state != State::Absent || !reads(access.access)) continue;
    // A page that is written first must not be read now: the bytes would be thrown away.
    if (schedule_->next_use(access.piece, position_) != at) continue;
    // One page leaves per read that waits: this runs again at every access and completion, so asking for more each time
    // would empty the cache while the first page is still being written.
    const auto slot = take_slot(lock, at, without_slot + 1, transfers);
    if (slot) {
      start_arrival(lock, access.piece, *slot, IoUrgency::Prefetch, transfers);
    } else if (++without_slot >= kMaxLeaving || evictable_.empty()) {
      return;
    }
  }
}

void ShardStore::unpin(PieceId piece, Access access) noexcept {
  Transfers transfers;
  {
    Lock lock(mutex_);
    Page& p = page(piece);
    --p.pins;
    if (writes(access)) {
      p.writer = false;
      p.dirty = true;
    }
    if (p.pins == 0 && p.state == State::Resident) settle(lock, piece, transfers);
    prefetch(lock, transfers);
    changed_.notify_all();
  }
  start(transfers);
}

void ShardStore::start(const Transfers& transfers) {
  for (const Transfer& transfer : transfers) {
    const PieceId piece = transfer.piece;
    Shard& shard = shards_[piece.shard.index];
    const std::span<std::byte> memory = slots_.slot(shard.pages[piece.piece].slot).first(bytes_of_piece(piece));
    if (transfer.direction == Transfer::Direction::In) {
      shard.tier->read(shard.home, offset_bytes(piece), memory, transfer.urgency)
          .on_complete([this, piece](std::exception_ptr error) { arrived(piece, std::move(error)); });
    } else {
      shard.tier->write(shard.home, offset_bytes(piece), memory).on_complete([this, piece](std::exception_ptr error) {
        left(piece, std::move(error));
      });
    }
  }
}

void ShardStore::arrived(PieceId piece, std::exception_ptr error) {
  Transfers transfers;
  EventSource arrival;
  {
    Lock lock(mutex_);
    Page& p = page(piece);
    arrival = std::move(p.arrival);
    p.state = State::Resident;
    p.dirty = false;
    if (error && !failure_) failure_ = error;
    if (p.pins == 0) settle(lock, piece, transfers);
    prefetch(lock, transfers);
  }
  start(transfers);
  if (error) {
    arrival.fail(error);
  } else {
    arrival.complete();
  }
  const Lock lock(mutex_);
  --in_flight_;  // last: the destructor must not run before the event has completed
  changed_.notify_all();
}

void ShardStore::left(PieceId piece, std::exception_ptr error) {
  Transfers transfers;
  {
    Lock lock(mutex_);
    Page& p = page(piece);
    const bool dropping = std::exchange(p.dropping, false);
    if (dropping) --leaving_;
    if (!shards_[piece.shard.index].tier->cacheable()) --uncached_leaving_;
    p.state = State::Resident;
    p.dirty = error != nullptr;
    if (error && !failure_) failure_ = error;
    if (p.pins == 0) {
      if (dropping && !error) {
        drop(lock, piece);
      } else {
        settle(lock, piece, transfers);
      }
    }
    prefetch(lock, transfers);
  }
  start(transfers);
  const Lock lock(mutex_);
  --in_flight_;
  changed_.notify_all();
}

void ShardStore::set_schedule(std::shared_ptr<const Schedule> schedule, std::shared_ptr<const Schedule> following) {
  Transfers transfers;
  {
    Lock lock(mutex_);
    schedule_ = std::move(schedule);
    following_ = std::move(following);
    position_ = 0;
    std::vector<std::uint64_t> cached;
    for (const auto& [rank, key] : evictable_) cached.push_back(key);
    evictable_.clear();
    for (const std::uint64_t key : cached) make_evictable(lock, unpack(key));
    prefetch(lock, transfers);
  }
  start(transfers);
}

void ShardStore::drain() {
  Lock lock(mutex_);
  changed_.wait(lock, [this] { return in_flight_ == 0; });
  throw_if_failed(lock);
}

void ShardStore::drain_uncached() {
  Lock lock(mutex_);
  changed_.wait(lock, [this] { return uncached_leaving_ == 0; });
  throw_if_failed(lock);
}

StoreStats ShardStore::stats() const {
  const Lock lock(mutex_);
  return stats_;
}

}  // namespace strata::offload
