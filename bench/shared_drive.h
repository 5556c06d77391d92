// What processes that use one drive at once get of it, with and without sharing its queue depth.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace strata::bench {

struct SharedDriveBenchOptions {
  std::filesystem::path dir{};  // an existing directory on the drive
  std::size_t processes = 2;
  std::uint64_t bytes = std::uint64_t{256} << 20;  // of what each process reads, and again of what it writes
  double seconds = 0.5;                            // of a measurement
  std::optional<std::size_t> block_bytes{};        // else as the drive's profile says
  std::optional<unsigned> queue_depth{};           // else as the drive's profile says
  unsigned rounds = 12;
};

// Each round measures write, read and a half-and-half mix of stores in processes of their own, all within the same
// moment of time: `shared`, whose requests together keep to the queue depth, `apart`, each with the whole depth, and
// `one`, the first process alone. The mix is prefetch reads and writes; beside it each process reads one block after
// the other on demand, whose median latency counts. Who goes first takes turns.
//
// {"processes", "rounds", "block_bytes", "depth", and for each of "write", "read", "mixed": {"one_gib_s",
//  "apart_gib_s", "shared_gib_s": medians, of all processes together; "apart_slowest_gib_s", "shared_slowest_gib_s": of
//  the slowest process; "total_ratio", "slowest_ratio": medians of shared / apart of one round, and "total_interval",
//  "slowest_interval": [low, high], 95 % for them}, "demand": {"one_ms", "apart_ms", "shared_ms": medians;
//  "latency_ratio", "latency_interval"}, "turns_ratio": median of the shared mix / what reads and writes one after the
//  other would give}
// Call it before this process has threads: it forks. Needs 4 * processes * bytes of free disk; leaves nothing behind.
// Throws: ConfigError; IoError; Error when a process fails, which says why on stderr.
nlohmann::json run_shared_drive_bench(const SharedDriveBenchOptions& options);

// A table for people.
std::string format_shared_drive_bench(const nlohmann::json& result);

}  // namespace strata::bench
