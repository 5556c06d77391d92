// How fast the NVMe store reads and writes, beside fio on the same directories.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace strata::bench {

struct NvmeBenchOptions {
  std::vector<std::filesystem::path> dirs{};       // existing directories, one per drive; several are striped
  std::uint64_t bytes = std::uint64_t{256} << 20;  // moved per measurement
  std::optional<std::size_t> block_bytes{};        // else as the first drive's profile says
  std::optional<unsigned> queue_depth{};           // per drive; else as the first drive's profile says
  unsigned rounds = 20;
  bool with_fio = true;                                                // where it is on PATH
  std::chrono::duration<double> idle{std::chrono::milliseconds(500)};  // of the drive before each measurement
};

// Each round measures write, read and a half-and-half mix, with the store, with the store and checksums, and where
// `fio` is on PATH with fio's io_uring engine (direct, registered buffers and files, same block size and depth). Who
// goes first takes turns, and the drive rests equally long before each. One more round before the first warms up and
// isn't counted.
//
// {"read_gib_s", "write_gib_s", "mixed_gib_s": medians;  "fio_read_gib_s", ...: the same of fio;
//  "read_ratio_median", ...: of store / fio of one round; "read_ratio_interval", ...: [low, high], 95 % for that
//  median; "read_checksum_ratio", ...: median of store with checksums / store without, of one round; "rounds", "bytes",
//  "block_bytes", "depth", "direct_io": bool, "dirs": [..], "fio": bool, "fio_huge_pages": bool, "huge_pages_wanted":
//  vm.nr_hugepages that would do for both sides, "drives": [{"path", "bytes_read", "bytes_written", "read_rate",
//  "write_rate", "best_write_rate"}], rates in bytes/s, "samples": {"read": {"store": [GiB/s], "checksums": [..],
//  "fio": [..]}, ...}}
// What needs fio is null without it. Needs 5 * bytes + 1 GiB of free disk and leaves nothing behind.
// Throws: ConfigError when an option or the free space is too small; IoError.
nlohmann::json run_nvme_bench(const NvmeBenchOptions& options);

// A table of the medians for people.
std::string format_nvme_bench(const nlohmann::json& result);

}  // namespace strata::bench
