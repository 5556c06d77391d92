// The optimizer's update of a training step, with its states on a drive and no model around it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "core/optimizer_config.h"
#include "engine/ideal.h"

namespace strata::bench {

struct UpdateRigOptions {
  std::filesystem::path folder;           // on the drive; nothing is left behind in it
  OptimizerConfig optimizer{};            // of bf16 parameters with bf16 gradients
  std::uint64_t numel = 0;                // parameters
  double cached_share = 0;                // of the states' bytes, in host memory from one step to the next: 0 to 1
  std::uint64_t slot_bytes = 4ULL << 20;  // of a page
  std::size_t threads = 0;                // of the update; 0: all usable CPUs
  engine::DriveRates rates{};             // for the plan of the pages; 0 = unknown
};

struct UpdateMeasure {
  double seconds = 0;         // until everything is on the drive
  double update_seconds = 0;  // of those, with an update running
  std::uint64_t read_bytes = 0;
  std::uint64_t written_bytes = 0;
};

// The pipeline, the store of pages and the store of files that the engine has, put together as it does, with parameters
// and gradients in host memory (4 bytes a parameter). For one thread.
class UpdateRig {
 public:
  // Lays out the states. Throws: ConfigError, OutOfBudget, IoError.
  explicit UpdateRig(const UpdateRigOptions& options);
  ~UpdateRig();

  // One update of every parameter. Ends with the drive at rest; what it read ahead is what the next one needs first.
  UpdateMeasure step();
  std::uint64_t state_bytes() const;
  // Host memory that it has allocated.
  std::uint64_t host_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata::bench
