// ShardStore: shards on any tier, reached from the host through pinned pages in a fixed number of equal slots.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/slot_pool.h"
#include "offload/cursor.h"
#include "offload/eviction.h"
#include "offload/piece_grid.h"
#include "offload/pin.h"
#include "offload/shard.h"

namespace strata::offload {

struct StoreStats {
  std::uint64_t page_hits = 0;     // acquired while in memory or on the way
  std::uint64_t page_misses = 0;   // acquired while on its tier only, and it had to be read
  std::uint64_t off_schedule = 0;  // accesses other than the schedule's next one
  std::size_t waiting = 0;         // callers blocked at this moment, for a slot or for another lane
  double stall_seconds = 0;        // callers blocked for a slot or for bytes
};

struct ShardStoreOptions {
  // Of scheduled accesses, those to kept pages not counted, that the prefetcher keeps in memory or on the way; 0 = off.
  std::uint64_t look_ahead_bytes = 0;
  // Called instead of sleeping, without the lock and again and again, while a caller must wait for a page or a slot.
  // Null outside of drivers that make time pass themselves.
  std::function<void()> on_blocked = {};
  std::size_t pins_at_once = 5;  // by one thread; see ShardStore::kMinSlots
};

// Ownership: owns pages and their slots' contents, neither tiers nor the pool. add() before the first acquire(), from
// one thread; acquire() from any thread, but a thread that holds pins may need slots that only it can free: see
// kMinSlots. Callers that wait for a slot get one first come, first served. Order: a pin sees the bytes of the latest
// released Write pin of its piece, whatever tier they are on by then. A failed read or write poisons the store: every
// later drain(), and acquire() of a paged piece, throws the first failure.
//
// [Note: residency] A page is Absent (on its tier only), Arriving (being read into a slot), Resident, or Leaving (being
// written back; still readable). A clean page is dropped without I/O. A dirty one is written when its slot is wanted,
// so a page that stays cached costs no traffic; where the schedule says which pages are kept, the others are written as
// soon as they are released, because they must go anyway. Pages of the device tier are fetched for one use and written
// back at once.
//
// [Note: lanes that wait] Updates on a thread of their own may be faster than the forward beside them. What they have
// written is gathered soon, so an update that finds no slot but those of pages that the gathers use before it, as the
// schedule orders them, waits for the gathers: thrown out, such a page would be read again. Gathers never wait for a
// later access, so this ends.
class ShardStore {
 public:
  // Slots that one thread may hold through pins at once: parameter, gradient, and three optimizer states of an update;
  // ShardStoreOptions::pins_at_once where there are more. With this many slots in the pool every acquire() ends:
  // whatever else occupies a slot can be dropped or written back. Threads that hold pins at the same time need this
  // many each.
  static constexpr std::size_t kMinSlots = 5;

  // `tiers[kind]` may be null when no shard lives there. Requires: slots.slots() >= options.pins_at_once.
  ShardStore(std::array<Tier*, kTiers> tiers, SlotPool& slots, std::unique_ptr<EvictionPolicy> policy,
             ShardStoreOptions options);
  // Waits for what is in flight. Requires: no pin is alive but those waiting for events that will complete.
  ~ShardStore();
  ShardStore(const ShardStore&) = delete;
  ShardStore& operator=(const ShardStore&) = delete;

  // Throws: OutOfBudget, IoError (the home does not fit its tier).
  ShardId add(ShardSpec spec);
  const ShardSpec& spec(ShardId shard) const { return shards_.at(shard.index).spec; }
  std::uint32_t pieces(ShardId shard) const { return grid(shard).pieces(); }
  PieceRange range(PieceId piece) const { return grid(piece.shard).range(piece.piece); }
  // The piece that holds `element`.
  PieceId piece_at(ShardId shard, std::uint64_t element) const { return {shard, grid(shard).at(element)}; }
  // Elements of a full piece of this type.
  std::uint64_t piece_numel(DType dtype) const { return slots_.slot_bytes() / bytes_of(dtype); }

  // Blocks while no slot is free, or while pins of the piece exclude this one. Throws: the first failure of the store.
  // Does neither for a piece that is not paged().
  // `lane`: of the schedule, to which this access belongs.
  Pin acquire(PieceId piece, Access access, Lane lane = Lane::Gathers);
  // Where device code finds a shard whose home is the device; null otherwise.
  std::byte* device_address(ShardId shard) const;

  // Starts repeating `schedule` from its beginning (null: nothing is known ahead). `following`: what is run afterwards.
  void set_schedule(std::shared_ptr<const Schedule> schedule, std::shared_ptr<const Schedule> following = nullptr);
  // See [Note: lanes that wait]: until the gathers go on, nobody waits for them. For whoever waits for the updates, or
  // ends, between two steps.
  void let_lanes_pass();
  // From now on instead of ShardStoreOptions::look_ahead_bytes: for plans that need the shards, and for new rates.
  void set_look_ahead(std::uint64_t bytes);
  // Whether host code reaches this piece through a page (false for homes in host memory).
  bool paged(PieceId piece) const { return range(piece).first >= spec(piece.shard).host_numel; }
  // Blocks until no read or write is in flight. Throws: the first failure.
  void drain();
  // Blocks until released writes to tiers without a cache (the device) have landed. Throws: the first failure.
  void drain_uncached();
  StoreStats stats() const;

 private:
  friend class Pin;
  enum class State : std::uint8_t { Absent, Arriving, Resident, Leaving };
  struct Page {
    State state = State::Absent;
    bool dirty = false;     // the slot is newer than the tier
    bool dropping = false;  // Leaving because its slot is wanted, so dropped afterwards
    bool writer = false;    // a Write or ReadWrite pin is alive
    std::uint32_t pins = 0;
    std::size_t slot = 0;
    std::uint64_t rank = 0;  // under which it is in evictable_
    EventSource arrival;     // while Arriving
  };
  struct Shard {
    ShardSpec spec;
    std::byte* host = nullptr;  // the first spec.host_numel elements
    Tier* tier = nullptr;       // of the others
    Home home;
    std::uint64_t first_byte = 0;  // where it begins there
    std::vector<Page> pages;       // one per piece; those at home in host memory stay Absent
  };
  // I/O decided under the lock and started outside it, because a completion may come back on this very thread.
  struct Transfer {
    PieceId piece;
    enum class Direction : std::uint8_t { In, Out } direction = Direction::In;
    IoUrgency urgency = IoUrgency::Demand;
  };
  using Lock = std::unique_lock<std::mutex>;
  using Transfers = std::vector<Transfer>;
  using Ticket = std::optional<std::uint64_t>;  // of a caller that waits, or waited, for a slot
  struct Caller {
    Ticket ticket;
    std::uint64_t yields_before = 0;  // pages that the schedule uses before this position are not its to throw out
  };
  // Early: other lanes come first.
  enum class Attempt : std::uint8_t { Pinned, Excluded, NoSlot, Early };
  enum class AfterWrite : std::uint8_t { Keep, Drop };

  Page& page(PieceId piece) { return shards_[piece.shard.index].pages[piece.piece]; }
  PieceGrid grid(ShardId shard) const {
    const ShardSpec& s = spec(shard);
    return {s.numel, s.host_numel, piece_numel(s.dtype)};
  }
  // Where the piece begins: in host memory from `host` on, else in its home.
  std::uint64_t offset_bytes(PieceId piece) const;
  std::size_t bytes_of_piece(PieceId piece) const;
  bool cacheable(PieceId piece) const { return shards_[piece.shard.index].tier->cacheable(); }

  // All below need the lock.
  void throw_if_failed(Lock& lock) const;
  void wait_for_change(Lock& lock);
  Attempt try_pin(Lock& lock, PieceId piece, Access access, const Caller& caller, Pin& pin, Transfers& transfers);
  void leave_queue(Lock& lock, const Ticket& ticket);
  bool kept(Lock& lock, PieceId piece) const;
  bool wanted_soon(Lock& lock, PieceId piece) const;
  std::optional<PieceId> victim_for_caller(Lock& lock) const;
  bool others_come_first(Lock& lock, const Caller& caller) const;
  std::optional<PieceId> victim_for_prefetch(Lock& lock, std::uint64_t wanted_at) const;
  std::optional<std::size_t> take_slot(Lock& lock, std::optional<PieceId> victim);
  void make_room_for_callers(Lock& lock, Transfers& transfers);
  void start_arrival(Lock& lock, PieceId piece, std::size_t slot, IoUrgency urgency, Transfers& transfers);
  void start_leaving(Lock& lock, PieceId piece, AfterWrite after, Transfers& transfers);
  void settle(Lock& lock, PieceId piece, Transfers& transfers);
  void drop(Lock& lock, PieceId piece);
  void make_evictable(Lock& lock, PieceId piece);
  void remove_evictable(Lock& lock, PieceId piece);
  // Returns where the access is in the schedule; kNever when it is not.
  std::uint64_t note_access(Lock& lock, PieceId piece, Lane lane);
  void extend_window(Lock& lock);
  std::uint64_t window_pages(Lock& lock, std::uint64_t position) const;
  void prefetch(Lock& lock, Transfers& transfers);

  // These take the lock themselves.
  void unpin(PieceId piece, Access access) noexcept;
  void start(const Transfers& transfers);
  void arrived(PieceId piece, std::exception_ptr error);
  void left(PieceId piece, std::exception_ptr error);

  const std::array<Tier*, kTiers> tiers_;
  SlotPool& slots_;
  const std::unique_ptr<EvictionPolicy> policy_;
  const ShardStoreOptions options_;
  std::vector<Shard> shards_;  // the vector itself is fixed after add(); pages are guarded by mutex_

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> evictable_;  // (rank, piece): Resident pages without pins
  std::shared_ptr<const Schedule> schedule_;
  std::shared_ptr<const Schedule> following_;
  std::uint64_t look_ahead_bytes_;  // guarded by mutex_
  Cursor cursor_;                   // in schedule_
  std::uint64_t front_ = 0;         // the window is [cursor_.position(), front_)
  std::uint64_t ahead_ = 0;         // pages of the window that count
  std::uint64_t prefetched_ = 0;    // what the window holds before this position is in memory or on the way
  std::uint64_t tick_ = 0;
  std::size_t in_flight_ = 0;         // transfers decided and not complete
  std::size_t uncached_leaving_ = 0;  // writes under way to tiers without a cache
  std::size_t leaving_ = 0;           // pages on their way out whose slots come free, or can be taken, after it
  std::set<std::uint64_t> queue_;     // tickets of callers blocked for a slot: the prefetcher stands back
  std::uint64_t next_ticket_ = 0;
  std::size_t early_ = 0;      // callers that wait for another lane: the prefetcher stands back
  bool lanes_pass_ = false;    // let_lanes_pass() since the last gather
  std::size_t late_pins_ = 0;  // pins that end with an event
  std::exception_ptr failure_;
  StoreStats stats_;
};

}  // namespace strata::offload
