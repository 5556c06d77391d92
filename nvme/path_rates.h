// How fast each path of a store is, seen from the transfers that the store makes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace strata::nvme {

// Bytes per second in which a path is busy, reads and writes together, over windows of `window_bytes`; older windows
// count half as much each time. One owner at a time: the store calls it with its mutex held.
class PathRates {
 public:
  using Clock = std::chrono::steady_clock;

  // `known` is what is believed before a path was measured: bytes per second, or 0 where nothing is known.
  PathRates(std::vector<double> known, std::uint64_t window_bytes);

  // Around each transfer; `bytes` is 0 when it failed. end() returns true when weights() changed.
  void begin(std::size_t path, Clock::time_point now);
  bool end(std::size_t path, std::uint64_t bytes, Clock::time_point now);

  // The share of the bytes that each path should hold; their sum is 1. Measured rates once every path has one (rates of
  // different origin cannot be compared), else the known ones when all are known, else equal.
  std::vector<double> weights() const;

 private:
  struct Path {
    std::size_t in_flight = 0;
    Clock::time_point since;  // until when `busy` is counted; meaningful while in_flight > 0
    double busy = 0;          // seconds, in this window
    std::uint64_t bytes = 0;  // in this window
    double old_busy = 0;      // of earlier windows, faded
    double old_bytes = 0;
    double rate = 0;  // 0 = not measured
  };
  static void count_busy(Path& path, Clock::time_point now);

  const std::vector<double> known_;
  const std::uint64_t window_bytes_;
  std::vector<Path> paths_;
};

}  // namespace strata::nvme
