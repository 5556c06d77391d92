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
  double seconds = 0;
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
  std::size_t pinned = 5;  // at once, by the callers: ShardStore::kMinSlots
};

struct LookAhead {
  std::vector<PieceId> kept;           // for Schedule
  std::uint64_t look_ahead_bytes = 0;  // for ShardStoreOptions
  double step_seconds = 0;             // as predicted
  double read_bytes = 0;               // of a step
  double written_bytes = 0;
};

// Every slot that reads ahead is one that caches nothing, so the window should be no larger than needed to keep the
// drive and the computation busy: the division is searched that makes a step fastest, and among those within half a
// percent of it the one that moves the fewest bytes. [Note: look-ahead] in the source derives the step's time.
// Which pages stay is spread evenly over the step, so that misses come at the rate of the drive instead of in one run,
// and nested: a page kept in a small pool is also kept in a larger one.
// Pure. Requires: rates > 0; pool.slots > pool.pinned.
LookAhead plan_look_ahead(std::span<const TimedAccess> step, const DriveRates& drive, const PoolSize& pool);

}  // namespace strata::offload
