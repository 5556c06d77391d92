// Distance to the ideal: how long a step would take if everything overlapped.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace strata::engine {

// Bytes per second of one drive. `mixed` is the total of both directions while as much is read as written; 0 = unknown,
// taken as no overlap at all.
struct DriveRates {
  double read = 0;
  double write = 0;
  double mixed = 0;
};

// How far a read and a write pass each other: 0 on a half-duplex drive, 1 on one that moves both at full rate.
double duplex_of(const DriveRates& rates);

// Seconds that a drive needs for these bytes: read/R + write/W, less what passes at the same time. Infinite where a
// rate is 0 and bytes are asked of it.
double drive_seconds(std::uint64_t bytes_read, std::uint64_t bytes_written, const DriveRates& rates);

// What one resource needs for a step when nothing else is waited for.
struct ResourceTime {
  std::string name;
  double seconds = 0;
};

// The largest of them: t* = max over the resources that can work at the same time, and which one it is.
// Source: the overlap bound of Ren et al., "ZeRO-Offload" (2021) and Rajbhandari et al., "ZeRO-Infinity" (2021), with
// rates measured instead of rated.
ResourceTime binding_resource(std::span<const ResourceTime> resources);

}  // namespace strata::engine
