// What a step would move if no page stayed in memory from one use to the next.
#pragma once

#include <cstdint>

#include "engine/engine.h"

namespace strata::bench {

struct DriveTraffic {
  std::uint64_t read = 0;
  std::uint64_t written = 0;
};

// Of a training step of `engine`: every state is read and written once; every weight is read for each gather and, where
// the update needs it, for that, and written once. What is used right after it was used counts once: a weight that is
// updated right before it is gathered, or gathered right before it is updated.
DriveTraffic uncached_traffic(const engine::Engine& engine);

}  // namespace strata::bench
