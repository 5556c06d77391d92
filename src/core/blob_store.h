// Port: a store of byte extents outside memory (files on NVMe; memory in tests).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/event.h"

namespace strata {

struct BlobId {
  std::uint32_t index = 0;
};

// What one drive did. Bytes are those sent to it, padding and checksum rereads included.
struct DriveStats {
  std::string path;
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  double read_busy_seconds = 0;   // time with at least one read in flight
  double write_busy_seconds = 0;  // time with at least one write in flight
  double busy_seconds = 0;        // time with any request in flight
  // Bytes per second, measured while running over windows of busy time; 0 = not yet known. A consumer drive writes at
  // its best rate only until its cache is full: `write_rate` is the newest window's, `best_write_rate` the best so far.
  double read_rate = 0;
  double write_rate = 0;
  double best_write_rate = 0;
};

struct BlobStoreStats {
  std::uint64_t bytes_read = 0;  // as asked by callers, padding excluded
  std::uint64_t bytes_written = 0;
  std::uint64_t requests = 0;    // sent to the backend
  double read_busy_seconds = 0;  // time with at least one read in flight
  double write_busy_seconds = 0;
  std::vector<DriveStats> drives{};  // one per path; empty where the store has no drives
};

// Which request goes first when both wait: a demand read has somebody waiting for it.
enum class IoUrgency : std::uint8_t { Demand, Prefetch };

// Thread-safety: all members from any thread. A range may not be written while another request on it is in flight
// (the caller orders accesses to one range through events); disjoint ranges are independent.
class BlobStore {
 public:
  virtual ~BlobStore() = default;
  // Reserves space for `bytes` bytes (contents undefined until written). `name` appears in errors.
  // Throws: IoError (ENOSPC with needed and free bytes), OutOfBudget.
  virtual BlobId create(std::string name, std::uint64_t bytes) = 0;
  // Any length and offset round-trips exactly. `destination` must stay valid until the event completes.
  // The event fails with IoError or CorruptionError.
  virtual Event read(BlobId blob, std::uint64_t offset_bytes, std::span<std::byte> destination, IoUrgency urgency) = 0;
  virtual Event write(BlobId blob, std::uint64_t offset_bytes, std::span<const std::byte> source) = 0;
  virtual BlobStoreStats stats() const = 0;
};

}  // namespace strata
