// Runs fio as a yardstick.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace strata::bench {

// One job, thread and ring per file, as the store has them per drive; each moves its share of the bytes.
struct FioJob {
  std::vector<std::filesystem::path> files{};  // written by fio, left to the caller
  std::string pattern;                         // "read", "write" or "rw"
  std::uint64_t bytes = 0;                     // of all files together
  std::size_t block_bytes = 0;
  unsigned queue_depth = 0;  // of each file
};

struct FioResult {
  double bytes_per_second = 0;           // reads and writes together
  std::chrono::duration<double> unused;  // how long the drive was idle while fio started and ended
};

bool fio_available();

// Huge pages that the buffers of such a run take. A request on 4 KiB pages has many segments, and drives with a limit
// below 257 get it cut; the store's buffers lie on huge pages, which fio can have only from the machine's reserve
// (vm.nr_hugepages).
std::uint64_t fio_huge_pages(const FioJob& job);
// True when so many are free.
bool fio_gets_huge_pages(const FioJob& job);

// Throws: IoError when fio fails.
FioResult run_fio(const FioJob& job);

// Runs of fio before each of which the drive rests for `idle`, as before what fio is compared with: a virtual drive's
// credit grows while it rests. fio's own start and end are part of the rest.
class RestedFio {
 public:
  explicit RestedFio(std::chrono::duration<double> idle) : idle_(idle) {}
  // Bytes per second. Throws: as run_fio.
  double run(const FioJob& job);

 private:
  const std::chrono::duration<double> idle_;
  std::chrono::duration<double> unused_{0};  // of the run before
};

}  // namespace strata::bench
