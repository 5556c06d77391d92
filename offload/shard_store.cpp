// The store towards its callers: shards, pins, and what completions change. residency.cpp decides about pages.
#include "offload/shard_store.h"

#include <chrono>
#include <optional>

#include "core/bytes.h"
#include "core/error.h"

namespace strata::offload {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

ShardStore::ShardStore(std::array<Tier*, kTiers> tiers, SlotPool& slots, std::unique_ptr<EvictionPolicy> policy,
                       ShardStoreOptions options)
    : tiers_(tiers),
      slots_(slots),
      policy_(std::move(policy)),
      options_(std::move(options)),
      look_ahead_bytes_(options_.look_ahead_bytes) {
  STRATA_EXPECTS(slots_.slots() >= options_.pins_at_once, "the staging pool has too few slots");
}

ShardStore::~ShardStore() {
  Lock lock(mutex_);
  schedule_ = nullptr;  // no more prefetching
  cursor_.start(nullptr);
  while (in_flight_ != 0 || late_pins_ != 0) wait_for_change(lock);
}

ShardId ShardStore::add(ShardSpec spec) {
  const auto tier = [this](TierKind kind) {
    Tier* found = tiers_[static_cast<std::size_t>(kind)];
    STRATA_EXPECTS(found != nullptr, "no such tier in this store");
    return found;
  };
  const MemoryTag tag = spec.kind == ShardKind::Param  ? MemoryTag::Param
                        : spec.kind == ShardKind::Grad ? MemoryTag::Grad
                                                       : MemoryTag::OptimState;
  const std::uint64_t element = bytes_of(spec.dtype);
  if (spec.home == TierKind::Host) spec.host_numel = spec.numel;
  STRATA_EXPECTS(
      spec.host_numel == spec.numel || (spec.host_numel < spec.numel && spec.host_numel * element % kPageBytes == 0),
      "the host share of " + spec.name + " is not whole blocks of the shard");
  // Device code takes a home on the device as one range.
  STRATA_EXPECTS(spec.home != TierKind::Device || spec.host_numel == 0,
                 spec.name + " cannot be shared between host memory and the device");
  Shard shard;
  if (spec.within) {
    const Shard& owner = shards_.at(spec.within->shard.index);
    const std::uint64_t first = spec.within->first * bytes_of(owner.spec.dtype);
    STRATA_EXPECTS(spec.home != TierKind::Nvme && spec.home == owner.spec.home &&
                       first + spec.numel * element <= owner.spec.numel * bytes_of(owner.spec.dtype),
                   spec.name + " cannot lie in the home of " + owner.spec.name);
    if (owner.host != nullptr) shard.host = owner.host + first;
    shard.tier = owner.tier;
    shard.home = owner.home;
    shard.first_byte = owner.first_byte + first;
  } else if (spec.host_numel > 0) {
    Tier* const host = tier(TierKind::Host);
    shard.host = host->host_address(host->create(spec.name, spec.host_numel * element, tag));
  }
  if (spec.host_numel < spec.numel && !spec.within) {
    shard.tier = tier(spec.home);
    shard.home = shard.tier->create(spec.name, (spec.numel - spec.host_numel) * element, tag);
  }
  shard.pages = std::vector<Page>(PieceGrid(spec.numel, spec.host_numel, piece_numel(spec.dtype)).pieces());
  shard.spec = std::move(spec);
  shards_.push_back(std::move(shard));
  return {static_cast<std::uint32_t>(shards_.size() - 1)};
}

std::uint64_t ShardStore::offset_bytes(PieceId piece) const {
  const ShardSpec& s = spec(piece.shard);
  const std::uint64_t first = range(piece).first;
  if (first < s.host_numel) return first * bytes_of(s.dtype);
  return shards_[piece.shard.index].first_byte + (first - s.host_numel) * bytes_of(s.dtype);
}

std::size_t ShardStore::bytes_of_piece(PieceId piece) const {
  return range(piece).numel * bytes_of(shards_[piece.shard.index].spec.dtype);
}

std::byte* ShardStore::device_address(ShardId shard) const {
  const Shard& s = shards_.at(shard.index);
  std::byte* const home = s.tier == nullptr ? nullptr : s.tier->device_address(s.home);
  return home == nullptr ? nullptr : home + s.first_byte;
}

Pin ShardStore::acquire(PieceId piece, Access access, Lane lane) {
  Shard& shard = shards_.at(piece.shard.index);
  Pin pin;
  pin.piece_ = piece;
  pin.access_ = access;
  if (!paged(piece)) {
    pin.bytes_ = {shard.host + offset_bytes(piece), bytes_of_piece(piece)};
    return pin;
  }
  Transfers transfers;
  Lock lock(mutex_);
  std::optional<Clock::time_point> blocked;
  Caller caller;
  const std::uint64_t position = note_access(lock, piece, lane);
  if (lane != Lane::Gathers && position != Schedule::kNever) caller.yields_before = position;
  for (;;) {
    const Attempt attempt = try_pin(lock, piece, access, caller, pin, transfers);
    if (attempt == Attempt::Pinned) break;
    if (!blocked) blocked = Clock::now();
    if (attempt == Attempt::NoSlot) {
      // Already before the lock is given up below: the slot that then comes free is the callers', not the prefetcher's.
      // Not undone when try_pin() throws, as a failed store gives out no more slots.
      if (!caller.ticket) caller.ticket = next_ticket_++;
      queue_.insert(*caller.ticket);
      make_room_for_callers(lock, transfers);
    } else {
      leave_queue(lock, caller.ticket);
    }
    if (!transfers.empty()) {
      lock.unlock();
      start(transfers);
      transfers.clear();
      lock.lock();
      continue;
    }
    early_ += attempt == Attempt::Early ? 1 : 0;
    wait_for_change(lock);
    early_ -= attempt == Attempt::Early ? 1 : 0;
  }
  leave_queue(lock, caller.ticket);
  if (blocked) stats_.stall_seconds += seconds_since(*blocked);
  prefetch(lock, transfers);
  lock.unlock();
  start(transfers);
  return pin;
}

// Pins the page, unless other pins exclude this one or there is no slot for it yet.
ShardStore::Attempt ShardStore::try_pin(Lock& lock, PieceId piece, Access access, const Caller& caller, Pin& pin,
                                        Transfers& transfers) {
  throw_if_failed(lock);
  Page& p = page(piece);
  const bool exclusive = writes(access);
  if (p.writer || (exclusive && (p.pins > 0 || p.state == State::Leaving))) return Attempt::Excluded;
  if (p.state == State::Absent) {
    const bool first = queue_.empty() || (caller.ticket && *caller.ticket <= *queue_.begin());
    if (!first) return Attempt::NoSlot;
    const bool early = others_come_first(lock, caller);
    const std::optional<std::size_t> slot = take_slot(lock, early ? std::nullopt : victim_for_caller(lock));
    if (!slot) return early ? Attempt::Early : Attempt::NoSlot;
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
  return Attempt::Pinned;
}

// The next in the queue may have seen a free slot and gone to sleep because it was not its turn.
void ShardStore::leave_queue(Lock&, const Ticket& ticket) {
  if (ticket && queue_.erase(*ticket) > 0 && !queue_.empty()) changed_.notify_all();
}

void ShardStore::wait_for_change(Lock& lock) {
  if (!options_.on_blocked) {
    changed_.wait(lock);
    return;
  }
  lock.unlock();
  options_.on_blocked();
  lock.lock();
}

void ShardStore::throw_if_failed(Lock&) const {
  if (failure_) std::rethrow_exception(failure_);
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
    --leaving_;
    if (!cacheable(piece)) --uncached_leaving_;
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

void ShardStore::drain() {
  Lock lock(mutex_);
  while (in_flight_ != 0) wait_for_change(lock);
  throw_if_failed(lock);
}

void ShardStore::drain_uncached() {
  Lock lock(mutex_);
  while (uncached_leaving_ != 0) wait_for_change(lock);
  throw_if_failed(lock);
}

StoreStats ShardStore::stats() const {
  const Lock lock(mutex_);
  StoreStats stats = stats_;
  stats.waiting = queue_.size() + early_;
  return stats;
}

}  // namespace strata::offload
