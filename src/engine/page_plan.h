// Which pages of a step stay in memory, and how far the store reads ahead.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/ideal.h"
#include "offload/look_ahead.h"
#include "offload/schedule.h"

namespace strata::engine {

// Of `pool`, the slots that pages pass through while drive and computing are busy: the others keep pages. Rates that
// are not known count as 2 GB/s here and below.
std::size_t passing_slots(const DriveRates& rates, const offload::PoolSize& pool);

struct PagePlan {
  std::shared_ptr<const offload::Schedule> schedule;
  std::uint64_t look_ahead_bytes = 0;
};

// Divides `pool` for a training step.
PagePlan plan_pages(std::span<const offload::TimedAccess> accesses, const DriveRates& rates,
                    const offload::PoolSize& pool);

}  // namespace strata::engine
