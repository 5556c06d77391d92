// How fast the NVMe store reads and writes, beside fio on the same directory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace strata::bench {

struct NvmeBenchOptions {
  std::filesystem::path dir;                       // an existing directory on the drive
  std::uint64_t bytes = std::uint64_t{256} << 20;  // moved per measurement
  std::size_t block_bytes = std::size_t{1} << 20;
  unsigned queue_depth = 32;
  unsigned rounds = 5;
};

// Each round measures write, read and a half-and-half mix, with the store and, where `fio` is on PATH, with fio's
// io_uring engine (direct, registered buffers and files, same block size and depth); who goes first alternates. One
// more round before the first warms up and isn't counted.
//
// {"dir", "bytes", "block_bytes", "queue_depth", "rounds", "direct": bool, "fio": bool, "fio_huge_pages": bool,
//  "write"|"read"|"mixed": {"strata": {"gb_per_s": [..], "median", "mad"}, "fio": the same,
//                           "ratio": {"values": [strata / fio of one round], "median", "mad"}}}; GB = 10^9 bytes.
// Needs 2 * bytes + 1 GiB of free disk and leaves nothing behind.
// Throws: ConfigError when an option or the free space is too small; IoError.
nlohmann::json run_nvme_bench(const NvmeBenchOptions& options);

// A table of the medians for people.
std::string format_nvme_bench(const nlohmann::json& result);

}  // namespace strata::bench
