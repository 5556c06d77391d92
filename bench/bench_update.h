// Question: how near does the optimizer's update with states on NVMe come to the rate at which fio moves the same
// bytes?
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/ideal.h"

namespace strata::bench {

struct UpdateBenchOptions {
  std::filesystem::path dir;  // an existing folder on the drive
  std::uint64_t numel = 1ULL << 26;
  std::vector<std::string> states = {"fp32", "remainder+8bit"};  // names as AdamBenchOptions has them
  std::vector<double> cached = {0, 0.5};                         // shares of the states' bytes; each with each states
  std::uint64_t slot_bytes = 4ULL << 20;                         // of a page: what the update moves at once
  std::size_t threads = 0;                                       // of the update; 0: all usable CPUs
  unsigned rounds = 9;
  bool with_fio = true;                       // where it is on PATH
  std::optional<engine::DriveRates> rates{};  // for the plan of the pages; absent: measured before
  std::chrono::duration<double> idle{std::chrono::milliseconds(500)};  // of the drive before each measurement
};

// For each row a step updates every parameter, with its states paged through the real pipeline and store; parameters
// and gradients lie in host memory. Rounds alternate with fio moving as many bytes, read and written in turn, with the
// store's block size and depth (bench_nvme.h). A step ends when its last write has.
//
// {"numel", "rounds", "slot_bytes", "dir", "fio": bool, "fio_huge_pages": in every row, "huge_pages_wanted":
//  vm.nr_hugepages that would do for fio beside the update's own pages, both of each row as well, "drive_rates": {"read", "write", "mixed"} in bytes/s, "rows": [{"states", "cached": asked
//  for, "state_bytes_per_parameter", "read_bytes", "written_bytes": of a step, counted, "cached_share": of the traffic
//  that did not happen, "bytes_to_first": moved, beside the first row, "seconds", "update_seconds": of those, with an
//  update running, "gib_s", "fio_gib_s": medians, "ratio_median", "ratio_interval": [low, high], 95 % for that median,
//  of our rate / fio's of one round, "samples": {"update": [GiB/s], "fio": [..]}}]}
// What needs fio is null without it, and where nothing moves. Needs 28 bytes of disk a parameter, 1/2 GiB for the
// rates, and 4 bytes of memory a parameter beside the cached states. Leaves nothing behind. Throws: ConfigError,
// OutOfBudget, IoError.
nlohmann::json run_update_bench(const UpdateBenchOptions& options);

// A table for people.
std::string format_update_bench(const nlohmann::json& result);

}  // namespace strata::bench
