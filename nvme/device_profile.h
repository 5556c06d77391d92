// What was measured of one drive, remembered between runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "nvme/uring_backend.h"

namespace strata::nvme {

// The defaults are for a drive of which nothing is known. Rates in bytes per second; 0 = not measured.
struct DeviceProfile {
  std::size_t block_bytes = std::size_t{1} << 20;
  unsigned queue_depth = 32;
  RingMode ring = RingMode::Deferred;
  // 0: reads and writes are mixed. Else they take turns of about this many bytes, because mixing costs.
  std::uint64_t burst_bytes = 0;
  double read_rate = 0;
  double write_rate = 0;
  double mixed_rate = 0;  // of both directions together, half reads and half writes
};

}  // namespace strata::nvme
