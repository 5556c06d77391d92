// BusyTimes: what computed when, for the report of a step and for the trace.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "core/trace.h"

namespace strata::zero {

enum class Work : std::uint8_t { Forward, Backward, Update, DeviceUpdate };
inline constexpr std::size_t kWorks = 4;

// Thread-safe: layers run on the compute stream while updates run on a thread of their own.
class BusyTimes {
 public:
  using Clock = Trace::Clock;

  // `trace`: gets every span as well; null = none. Must outlive this object.
  explicit BusyTimes(Trace* trace = nullptr) : trace_(trace) {}

  // `index`: of the layer or the group.
  void add(Work work, std::size_t index, Clock::time_point begin, Clock::time_point end);

  struct Totals {
    std::array<double, kWorks> seconds{};  // by Work; of work that overlaps each counts in full
    double any = 0;                        // with at least one of them running
    double of(Work work) const { return seconds[static_cast<std::size_t>(work)]; }
  };
  // Of the work that has ended since the last call.
  Totals take();

 private:
  struct Span {
    Work work;
    Clock::time_point begin;
    Clock::time_point end;
  };
  Trace* trace_;
  std::mutex mutex_;
  std::vector<Span> spans_;  // guarded by mutex_
};

// Queues `fn` on `stream` and adds the time that the device takes for it: from the end of what was queued before to its
// own end. Failed work adds nothing. `times` must outlive the stream. What an event shows that was recorded afterwards
// has been added.
void launch_timed(Stream& stream, BusyTimes& times, Work work, std::size_t index, std::function<void()> fn);

// Adds the time of a scope.
class Stopwatch {
 public:
  Stopwatch(BusyTimes& times, Work work, std::size_t index) : times_(times), work_(work), index_(index) {}
  ~Stopwatch() { times_.add(work_, index_, begin_, BusyTimes::Clock::now()); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  BusyTimes& times_;
  Work work_;
  std::size_t index_;
  BusyTimes::Clock::time_point begin_ = BusyTimes::Clock::now();
};

}  // namespace strata::zero
