// Moves bytes through the NVMe store the way the engine does, and says how fast.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/budget.h"
#include "core/slot_pool.h"
#include "nvme/nvme_store.h"

namespace strata::bench {

enum class Pattern { Write, Read, Mixed };
inline constexpr std::array kPatterns{Pattern::Write, Pattern::Read, Pattern::Mixed};
const char* name_of(Pattern pattern);

inline constexpr std::size_t kTransferBytes = std::size_t{8} << 20;  // about what the engine moves at once

struct StoreRunnerOptions {
  std::vector<std::filesystem::path> folders{};  // one per drive
  std::uint64_t bytes = 0;                       // moved by one run
  std::size_t block_bytes = 0;
  unsigned queue_depth = 0;
  bool checksums = false;
  std::string job{};  // NvmeOptions::job, of several ranks
  std::size_t ranks = 1;
};

// A store with two blobs of `bytes` each, moved transfer after transfer through registered slots. For one thread.
class StoreRunner {
 public:
  // Slots of kTransferBytes that keep the queues of all folders full even while the thread that fills them is late.
  static std::size_t slots_for(const StoreRunnerOptions& options);

  // `slots` must outlive the runner; several runners may share them, one run at a time.
  StoreRunner(const StoreRunnerOptions& options, SlotPool& slots);

  // Bytes per second. Mixed reads one blob and writes the other, half each. Requires: a write before the first read.
  double run(Pattern pattern);

  using Clock = std::chrono::steady_clock;
  // Moves transfers as run() does, with prefetch reads, from before `begin` until `end`. Bytes of those that completed
  // between the two.
  std::uint64_t run_between(Pattern pattern, Clock::time_point begin, Clock::time_point end);
  // Seconds that it takes to read so many bytes of the first blob while somebody waits for them. From any thread.
  double read_on_demand(std::span<std::byte> destination);

  bool direct() const { return direct_; }
  BlobStoreStats stats() const { return store_.stats(); }

 private:
  Event move(Pattern pattern, std::size_t transfer, std::span<std::byte> slot, IoUrgency urgency);

  const std::uint64_t bytes_;
  SlotPool& slots_;
  Budget disk_;
  nvme::NvmeStore store_;
  bool direct_ = true;
  std::array<BlobId, 2> blobs_;
};

}  // namespace strata::bench
