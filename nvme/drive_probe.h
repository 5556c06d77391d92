// Measures a real drive, through the queue that the store uses.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "core/budget.h"
#include "core/buffer.h"
#include "nvme/extent.h"
#include "nvme/swap_file.h"
#include "nvme/tuner.h"

namespace strata::nvme {

struct ProbeOptions {
  std::filesystem::path directory;
  std::uint64_t bytes = std::uint64_t{1} << 30;  // of the file that is read and written; at least kLeastBytes
  std::uint64_t sustained_bytes = 0;             // that write_sustained() will write
};

// Rates of one long write to fresh space.
struct SustainedReport {
  std::uint64_t window_bytes = 0;
  std::vector<double> rates;  // of the windows, bytes per second
  double first_rate = 0;
  double last_rate = 0;  // median of the last quarter
};

// One anonymous file, gone with this object or the process. Holds kBufferBytes of memory per direction. Of one thread.
class DriveProbe final : public Probe {
 public:
  static constexpr std::uint64_t kLeastBytes = std::uint64_t{8} << 20;
  static constexpr std::size_t kBufferBytes = std::size_t{64} << 20;
  static constexpr std::uint64_t kSpareBytes = std::uint64_t{64} << 20;  // that must stay free

  // Without writing anything. Throws: ConfigError when it is no directory or `bytes` are too few; OutOfBudget with
  // needed and free bytes; IoError.
  static void check(const ProbeOptions& options);

  // Reserves the space and writes it once, so that reads find data. Throws: as check(), IoError.
  explicit DriveProbe(const ProbeOptions& options);

  bool direct() const { return file_.mode() == IoMode::Direct; }
  Sample measure(const Trial& trial) override;
  bool knows(RingMode mode) override;
  // Writes sustained_bytes to space of their own. Requires: sustained_bytes > 0; once.
  SustainedReport write_sustained(const DeviceProfile& profile);

 private:
  struct Lane;
  Extent reserve(const char* name, std::uint64_t bytes);
  void fill();

  const ProbeOptions options_;
  SwapFile file_;
  Budget memory_;
  Buffer read_buffer_;
  Buffer write_buffer_;
  Extent extent_;
  std::uint64_t read_at_ = 0;  // where the next trial goes on
  std::uint64_t write_at_ = 0;
};

}  // namespace strata::nvme
