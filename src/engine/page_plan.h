// Which pages of a step stay in memory, and how far the store reads ahead.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/ideal.h"
#include "offload/look_ahead.h"
#include "offload/schedule.h"

namespace strata::engine {

// Seconds of computing in one step; 0 = not yet measured, taken as bound by the drive.
struct PhaseSeconds {
  double gathers = 0;  // forward and backward
  double update = 0;
};

struct PagePlan {
  std::shared_ptr<const offload::Schedule> schedule;
  std::uint64_t look_ahead_bytes = 0;
};

// Divides `pool` for a training step of these accesses: gathers, then, from the first write on, the update; or the
// update under the gathers, where it has a lane of its own. Computing is spread evenly over the accesses of its phase.
// Rates that are not known count as 2 GB/s.
PagePlan plan_pages(std::vector<offload::ScheduledAccess> accesses, const PhaseSeconds& seconds,
                    const DriveRates& rates, const offload::PoolSize& pool);

}  // namespace strata::engine
