// Runs fio as a yardstick.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace strata::bench {

struct FioJob {
  std::filesystem::path file;  // written by fio, left to the caller
  std::string pattern;         // "read", "write" or "rw"
  std::uint64_t bytes = 0;
  std::size_t block_bytes = 0;
  unsigned queue_depth = 0;
};

bool fio_available();

// True when enough huge pages are reserved (vm.nr_hugepages) for fio's buffers. A request on 4 KiB pages has many
// segments, and drives with a limit below 257 get it cut; the store's buffers lie on transparent huge pages, which fio
// cannot ask for.
bool fio_gets_huge_pages(std::size_t block_bytes, unsigned queue_depth);

// Bytes per second, reads and writes together. Throws: IoError when fio fails.
double run_fio(const FioJob& job);

}  // namespace strata::bench
