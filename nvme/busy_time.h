// How long at least one of several things was going on.
#pragma once

#include <chrono>
#include <cstdint>

namespace strata::nvme {

// Moments are given, so that tests can make them up; they never go back. Not thread-safe.
class BusyTime {
 public:
  using Clock = std::chrono::steady_clock;

  void begin(Clock::time_point now) {
    if (running_++ == 0) since_ = now;
  }
  void end(Clock::time_point now) {
    if (--running_ == 0) done_ += now - since_;
  }
  double seconds(Clock::time_point now) const {
    return std::chrono::duration<double>(running_ > 0 ? done_ + (now - since_) : done_).count();
  }

 private:
  std::uint64_t running_ = 0;
  Clock::duration done_{};
  Clock::time_point since_;  // meaningful while running_ > 0
};

}  // namespace strata::nvme
