// Stopwatch: counts the time of a scope and, where somebody traces, draws it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/trace.h"

namespace strata::zero {

// Adds the scope's seconds to `total`, and a span "what index" to the row of the trace, which may be null.
class Stopwatch {
 public:
  Stopwatch(double& total, Trace* trace, std::string_view row, std::string_view what, std::size_t index)
      : total_(total), trace_(trace), row_(row), what_(what), index_(index) {}
  ~Stopwatch() {
    const Trace::Clock::time_point end = Trace::Clock::now();
    total_ += std::chrono::duration<double>(end - start_).count();
    if (trace_ == nullptr) return;
    const std::uint32_t row = trace_->row(std::string(row_), Trace::Row::Sequential);
    trace_->add({row, std::string(what_) + " " + std::to_string(index_), start_, end, 0});
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& total_;
  Trace* trace_;
  std::string_view row_;
  std::string_view what_;
  std::size_t index_;
  Trace::Clock::time_point start_ = Trace::Clock::now();
};

}  // namespace strata::zero
