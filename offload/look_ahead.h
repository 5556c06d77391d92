// How a pool of slots is divided between pages that stay and pages that pass through: the plan behind a Schedule.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/schedule.h"

namespace strata::offload {

// One access of a step, and the seconds of computing that follow it and come before the next access is needed.
struct TimedAccess {
  PieceId piece;
  Access access = Access::Read;
  double seconds = 0;  // by its lane
  Lane lane = Lane::Gathers;
  double beside_seconds = 0;  // by other lanes meanwhile
  std::uint64_t bytes = 0;    // of the page; 0: a whole slot
};

enum class Duplex : std::uint8_t { Half, Full };

// Measured, not rated; half duplex where reads and writes share one rate budget.
struct DriveRates {
  double read_bytes_per_second = 0;
  double write_bytes_per_second = 0;
  double latency_seconds = 0;
  Duplex duplex = Duplex::Full;
};

struct PoolSize {
  std::size_t slots = 0;
  std::size_t slot_bytes = 0;
  std::size_t pinned = 5;  // at most at once by the callers: ShardStore::kMinSlots
};

struct LookAhead {
  std::vector<PieceId> kept;           // for Schedule
  std::uint64_t look_ahead_bytes = 0;  // for ShardStore::set_look_ahead()
};

// Slots that pages pass through while the drive and the computation are both busy: those in use, as many again that are
// being read for what comes next (at least what is on the way within the drive's latency), and those being written.
std::size_t passing_slots(const DriveRates& drive, const PoolSize& pool);

// [Note: look-ahead] A slot that keeps a page saves its traffic; a slot that reads ahead farther than the drive needs
// to stay busy only moves a read to another time. So passing_slots() are enough for the window and all others keep
// pages, but for those that hold what one lane leaves to another until that reads it: an updated weight until its
// gather, a gathered one until its update. Which pages are kept is decided slot by slot: the kind of page (weights,
// states) goes next that shortens the step most, or else moves the most bytes. A step is taken as two phases: the
// accesses from the first write to the last, which are those of the update and of what runs beside it, and the others.
// Each lasts as long as its transfers or the computation of the lane that has most, whichever is longer. So the pages
// kept in a small pool are also kept in a larger one, and more slots never cost bytes. Pages of one kind are kept
// evenly over the step, so that misses come at the rate of the drive instead of in one run. Pure. Requires: rates > 0;
// pool.slots >= pool.pinned > 0.
LookAhead plan_look_ahead(std::span<const TimedAccess> step, const DriveRates& drive, const PoolSize& pool);

}  // namespace strata::offload
