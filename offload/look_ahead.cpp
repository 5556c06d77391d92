#include "offload/look_ahead.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <list>
#include <unordered_map>

#include "core/error.h"

namespace strata::offload {
namespace {

// What a step does with one page.
struct PageTraffic {
  PieceId piece;
  double saved_seconds = 0;  // of the drive, when the page stays
};

// The step with its pages numbered in the order of their first access.
struct Step {
  std::vector<PageTraffic> pages;
  std::vector<std::size_t> page_of;  // each access

  Step(std::span<const TimedAccess> accesses, const DriveRates& drive) {
    std::unordered_map<std::uint64_t, std::size_t> numbers;
    for (const TimedAccess& a : accesses) {
      const std::uint64_t key = (static_cast<std::uint64_t>(a.piece.shard.index) << 32) | a.piece.piece;
      const auto [found, fresh] = numbers.emplace(key, pages.size());
      if (fresh) pages.push_back({a.piece});
      page_of.push_back(found->second);
      PageTraffic& page = pages[found->second];
      if (reads(a.access)) page.saved_seconds += 1 / drive.read_bytes_per_second;
      if (writes(a.access)) page.saved_seconds += 1 / drive.write_bytes_per_second;
    }
  }
};

// Which pages stay first: those that cost the drive most (fewest bytes), those that cost it least (in a step whose
// forward and backward hide all their reads, only the update's pages are worth keeping), or all alike.
enum class Prefer : std::uint8_t { CostliestPages, CheapestPages, NoPages };

// The pages in the order in which a growing pool keeps them. Among equals the order is that of the van der Corput
// sequence (the index with its bits reversed), of which every prefix is spread evenly.
std::vector<std::size_t> keeping_order(const Step& step, Prefer prefer) {
  std::vector<std::size_t> order(step.pages.size());
  std::vector<std::uint64_t> spread(order.size());
  std::unordered_map<double, std::uint64_t> in_class;
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
    std::uint64_t index = prefer == Prefer::NoPages ? i : in_class[step.pages[i].saved_seconds]++;
    for (int bit = 0; bit < 32; ++bit, index >>= 1) spread[i] = (spread[i] << 1) | (index & 1);
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const double difference = step.pages[a].saved_seconds - step.pages[b].saved_seconds;
    if (prefer != Prefer::NoPages && difference != 0) return (difference > 0) == (prefer == Prefer::CostliestPages);
    return spread[a] < spread[b];
  });
  return order;
}

// [Note: look-ahead] The time of a step whose pages pass through `slots` slots, but for those that stay. It is the
// longest path through these constraints, which are followed access by access (max-plus recursion):
//   a read begins when the link is free and the slot that it needs, the one taken `slots` transfers before, is free;
//   an access is granted when its page is there and the computation before the last one has ended (the gather is one
//   visit ahead); its computation begins when the last one has ended;
//   a page that was only read gives its slot up when it is granted, one that was written after its computation and
//   after its write, which begins when the link is free.
// Half duplex is the same with one link, on which a write is done when a read needs its slot or cannot start yet.
class Pipeline {
 public:
  Pipeline(const DriveRates& drive, std::size_t slots, double page_bytes)
      : read_seconds_(page_bytes / drive.read_bytes_per_second),
        write_seconds_(page_bytes / drive.write_bytes_per_second),
        latency_(drive.latency_seconds),
        half_(drive.duplex == Duplex::Half),
        slots_(slots),
        pending_of_(slots) {}

  // Where the computation stands in time.
  double now() const { return end_; }
  double reads() const { return reads_; }
  double writes() const { return writes_; }

  void pass(std::size_t page, Access access, double seconds) {
    double ready = 0;
    const bool there = touch(page);
    const std::size_t slot = there ? slot_of_[page] : next_slot_++ % slots_.size();
    slot_of_[page] = slot;
    if (!there) {
      while (pending_of_[slot] > 0) write_oldest();
      ready = offload::reads(access) ? read_into(slot) : slots_[slot];
    }
    granted_ = std::max({ready, begin_, granted_});
    slots_[slot] = granted_;
    if (offload::writes(access)) {
      pending_.push_back({slot, granted_});
      ++pending_of_[slot];
      ++not_computed_;
    }
    compute(seconds);
  }
  // An access to a page that stays.
  void keep(double seconds) {
    granted_ = std::max(granted_, begin_);
    compute(seconds);
  }

 private:
  struct Write {
    std::size_t slot;
    double released;
  };

  // Whether the page is still in a slot since its last use (least recently used: what a turn from forward to backward
  // finds).
  bool touch(std::size_t page) {
    const auto found = where_.find(page);
    const bool there = found != where_.end();
    if (there) recent_.erase(found->second);
    recent_.push_front(page);
    where_[page] = recent_.begin();
    if (recent_.size() > slots_.size()) {
      where_.erase(recent_.back());
      recent_.pop_back();
    }
    return there;
  }

  // What the accesses since the last computation were for; what they write may leave after it.
  void compute(double seconds) {
    if (seconds == 0) return;
    begin_ = std::max(granted_, end_);
    end_ = begin_ + seconds;
    not_computed_ = std::min(not_computed_, pending_.size());
    for (; not_computed_ > 0; --not_computed_) pending_[pending_.size() - not_computed_].released = end_;
  }
  void write_oldest() {
    const Write w = pending_.front();
    pending_.pop_front();
    --pending_of_[w.slot];
    double& link = half_ ? reader_ : writer_;
    link = std::max(link, w.released) + write_seconds_;
    slots_[w.slot] = std::max(slots_[w.slot], link + latency_);
    ++writes_;
  }
  double read_into(std::size_t slot) {
    // Without a slot to read into, the link writes what it can.
    while (half_ && !pending_.empty() &&
           std::max(reader_, pending_.front().released) + write_seconds_ <= slots_[slot]) {
      write_oldest();
    }
    reader_ = std::max(reader_, slots_[slot]) + read_seconds_;
    ++reads_;
    return reader_ + latency_;
  }

  const double read_seconds_;
  const double write_seconds_;
  const double latency_;
  const bool half_;
  double reader_ = 0;  // when the link is free; both directions of a half-duplex drive
  double writer_ = 0;
  double granted_ = 0;
  double begin_ = 0;  // of the last computation
  double end_ = 0;
  double reads_ = 0;
  double writes_ = 0;
  std::vector<double> slots_;  // when each is free
  std::size_t next_slot_ = 0;
  std::deque<Write> pending_;            // oldest first
  std::vector<std::size_t> pending_of_;  // of each slot
  std::size_t not_computed_ = 0;         // of the newest of these
  std::list<std::size_t> recent_;
  std::unordered_map<std::size_t, std::list<std::size_t>::iterator> where_;
  std::unordered_map<std::size_t, std::size_t> slot_of_;
};

struct Division {
  Prefer prefer = Prefer::CostliestPages;
  std::size_t passing = 0;  // slots that pages pass through; the others keep theirs
  double seconds = 0;
  double read_pages = 0;
  double written_pages = 0;
  double bytes() const { return read_pages + written_pages; }
};

// Fills in what `division` costs per step, once the first steps have filled the pipeline.
void measure(std::span<const TimedAccess> accesses, const Step& step, const std::vector<bool>& stays,
             const DriveRates& drive, const PoolSize& pool, Division& division) {
  Pipeline pipeline(drive, std::max<std::size_t>(division.passing, 1), static_cast<double>(pool.slot_bytes));
  constexpr int kFilling = 2;
  constexpr int kMeasured = 2;
  Division before;
  for (int repetition = 0; repetition < kFilling + kMeasured; ++repetition) {
    if (repetition == kFilling) before = {{}, 0, pipeline.now(), pipeline.reads(), pipeline.writes()};
    for (std::size_t i = 0; i < accesses.size(); ++i) {
      if (stays[step.page_of[i]]) {
        pipeline.keep(accesses[i].seconds);
      } else {
        pipeline.pass(step.page_of[i], accesses[i].access, accesses[i].seconds);
      }
    }
  }
  division.seconds = (pipeline.now() - before.seconds) / kMeasured;
  division.read_pages = (pipeline.reads() - before.read_pages) / kMeasured;
  division.written_pages = (pipeline.writes() - before.written_pages) / kMeasured;
}

}  // namespace

LookAhead plan_look_ahead(std::span<const TimedAccess> accesses, const DriveRates& drive, const PoolSize& pool) {
  STRATA_EXPECTS(drive.read_bytes_per_second > 0 && drive.write_bytes_per_second > 0, "a drive has rates");
  STRATA_EXPECTS(pool.slots >= pool.pinned && pool.slot_bytes > 0, "the pool is smaller than what callers pin");
  const Step step(accesses, drive);
  const std::size_t pages = step.pages.size();
  Division best;
  std::vector<PieceId> kept;
  const auto consider = [&](Prefer prefer, const std::vector<std::size_t>& order, std::size_t passing) {
    std::vector<bool> stays(pages, false);
    const std::size_t keep = pages <= pool.slots ? pages : pool.slots - passing;
    for (std::size_t i = 0; i < keep; ++i) stays[order[i]] = true;
    Division division{prefer, passing};
    measure(accesses, step, stays, drive, pool, division);
    constexpr double kWorthIt = 0.995;
    const bool faster = division.seconds < kWorthIt * best.seconds;
    const bool slower = kWorthIt * division.seconds > best.seconds;
    if (best.passing > 0 && !faster && (slower || division.bytes() >= best.bytes())) return;
    best = division;
    kept.clear();
    for (std::size_t i = 0; i < keep; ++i) kept.push_back(step.pages[order[i]].piece);
  };
  for (const Prefer prefer : {Prefer::CostliestPages, Prefer::CheapestPages, Prefer::NoPages}) {
    const std::vector<std::size_t> order = keeping_order(step, prefer);
    // A step that fits needs no slot to pass through; otherwise a quarter more each time is close enough.
    if (pages <= pool.slots) {
      consider(prefer, order, std::max<std::size_t>(pool.slots - pages, 1));
      continue;
    }
    for (std::size_t passing = std::min(pool.pinned + 1, pool.slots);; passing += passing / 4) {
      consider(prefer, order, std::min(passing, pool.slots));
      if (passing >= pool.slots) break;
    }
  }
  const auto slot_bytes = static_cast<double>(pool.slot_bytes);
  // One slot less, for a page that is only written: it is not read ahead, yet needs a slot at once.
  const std::size_t window = std::max<std::size_t>(best.passing, 2) - 1;
  return {std::move(kept), window * static_cast<std::uint64_t>(pool.slot_bytes), best.seconds,
          best.read_pages * slot_bytes, best.written_pages * slot_bytes};
}

}  // namespace strata::offload
