// A process that measures when it is told to.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>

namespace strata::bench {

// What all processes of a measurement do, in the same window of time.
struct RankTask {
  int pattern = 0;
  bool shared = false;
  bool demand = false;
  std::chrono::steady_clock::time_point begin{};  // the same clock in all processes
  std::chrono::steady_clock::time_point end{};
};
struct RankResult {
  std::uint64_t bytes = 0;
  double demand_seconds = 0;  // median; 0: not asked for
};

// Runs `make` in a new process, then what it returned for every task. The process ends with this object, or with the
// program. Throws: IoError when it cannot be started.
class RankProcess {
 public:
  using Work = std::function<RankResult(const RankTask&)>;

  explicit RankProcess(const std::function<Work()>& make);
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  // Throws: Error when the process has failed; it has said why on stderr.
  void start(const RankTask& task);
  RankResult result();

 private:
  pid_t pid_ = -1;
  std::array<int, 2> ends_{};  // ours and theirs
};

}  // namespace strata::bench
