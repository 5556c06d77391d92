// Finds out how a drive wants to be used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nvme/device_profile.h"

namespace strata::nvme {

enum class Pattern : std::uint8_t { Read, Write, Mixed };  // Mixed: half the bytes each

// One way to use a drive, for `seconds`.
struct Trial {
  Pattern pattern = Pattern::Read;
  std::size_t block_bytes = std::size_t{1} << 20;
  unsigned depth = 32;
  RingMode ring = RingMode::Plain;
  std::uint64_t burst_bytes = 0;
  double seconds = 0.1;
  bool busy = false;  // every CPU computes meanwhile, as in a training step; cpu_per_byte then means nothing
};

struct Sample {
  double rate = 0;          // bytes per second, of both directions together
  double cpu_per_byte = 0;  // seconds of all threads of the process, a polling kernel thread included
};

// Port: a drive, or a test's imitation of one.
class Probe {
 public:
  virtual ~Probe() = default;
  virtual Sample measure(const Trial& trial) = 0;
  // Whether rings of this mode can be had; none of them where io_uring is refused.
  virtual bool knows(RingMode mode) = 0;
};

// Rates are bytes per second; `spread` is their median absolute deviation as a share of the median.
struct SizeRow {
  std::size_t block_bytes = 0;
  unsigned depth = 0;
  double read_rate = 0;
  double write_rate = 0;
  double rate = 0;  // for one byte each way: harmonic mean of the two
  double spread = 0;
};
struct RingRow {
  RingMode ring = RingMode::Plain;
  double rate = 0;       // as in SizeRow
  double busy_rate = 0;  // the same while every CPU computes
  double cpu_per_byte = 0;
  double spread = 0;
};
struct MixRow {
  std::uint64_t burst_bytes = 0;
  double rate = 0;
  double spread = 0;
};

struct TuneReport {
  unsigned rounds = 0;
  std::vector<SizeRow> sizes;
  std::vector<RingRow> rings;  // those that the kernel knows
  std::vector<MixRow> mixes;
  double read_rate = 0;  // alone, with the chosen block, depth and ring
  double write_rate = 0;
  bool half_duplex = true;  // reads and writes together are no faster than one after the other
  DeviceProfile profile;    // what was chosen
};

struct TuneOptions {
  double seconds = 30;  // about, for all trials; at least three rounds are made
};

// Three sweeps, each on what the one before chose: request size and depth, ring mode, mixing. In each, rounds of all
// candidates alternate, because shared drives drift: a candidate is judged by its share of its round's mean.
//   size and depth  the fewest bytes in flight (a demand read waits for them) within 2 % of the best, or within the
//   noise ring            plain, unless another is clearly faster, or as fast for clearly less CPU mixing bursts only
//   where they beat mixing clearly; then the smallest within 2 % of the best
TuneReport tune(Probe& probe, const TuneOptions& options);

}  // namespace strata::nvme
