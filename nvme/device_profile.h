// What was measured of one drive, remembered between runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

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

  friend bool operator==(const DeviceProfile&, const DeviceProfile&) = default;
};

// "plain", "deferred", "polled".
std::string name_of(RingMode mode);

// The file of all profiles: $STRATA_DRIVE_PROFILES, else strata/drives.json in $XDG_CACHE_HOME or ~/.cache. Empty when
// none of the three variables is set.
std::filesystem::path profile_file();

// What profiles are filed under: the drive below `directory` (or below its nearest parent that exists). Model and
// serial number (or another lasting identity) of the whole disk where the kernel shows them in `sysfs`, else
// MAJOR:MINOR of the disk; MAJOR:MINOR of the file system where there is no disk (tmpfs, NFS). Throws: IoError when
// nothing of the path exists.
std::string drive_of(const std::filesystem::path& directory);
std::string drive_of(unsigned major, unsigned minor, const std::filesystem::path& sysfs);

// Nothing when none is known. A file or an entry that makes no sense is ignored with one warning.
std::optional<DeviceProfile> load_profile(const std::filesystem::path& directory);

// Adds or replaces the drive's entry and keeps the others; the file is replaced as a whole. False, with a warning that
// says why, when it cannot be written.
bool save_profile(const std::filesystem::path& directory, const DeviceProfile& profile);

}  // namespace strata::nvme
