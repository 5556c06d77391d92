#include "zero/busy_times.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

namespace strata::zero {
namespace {

double seconds_between(BusyTimes::Clock::time_point begin, BusyTimes::Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

const char* name_of(Work work) {
  switch (work) {
    case Work::Forward:
      return "forward";
    case Work::Backward:
      return "backward";
    case Work::Update:
    case Work::DeviceUpdate:
      return "update";
  }
  return "?";
}

const char* row_of(Work work) {
  switch (work) {
    case Work::Forward:
    case Work::Backward:
      return "compute";
    case Work::Update:
      return "optimizer";
    case Work::DeviceUpdate:
      return "optimizer on the device";
  }
  return "?";
}

}  // namespace

void BusyTimes::add(Work work, std::size_t index, Clock::time_point begin, Clock::time_point end) {
  if (trace_ != nullptr) {
    const std::uint32_t row = trace_->row(row_of(work), Trace::Row::Sequential);
    trace_->add({row, std::string(name_of(work)) + " " + std::to_string(index), begin, end, 0});
  }
  const std::lock_guard lock(mutex_);
  spans_.push_back({work, begin, end});
}

BusyTimes::Totals BusyTimes::take() {
  std::vector<Span> spans;
  {
    const std::lock_guard lock(mutex_);
    spans.swap(spans_);
  }
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  Totals totals;
  Clock::time_point covered = Clock::time_point::min();  // everything before is counted in `any`
  for (const Span& span : spans) {
    totals.seconds[static_cast<std::size_t>(span.work)] += seconds_between(span.begin, span.end);
    if (span.end <= covered) continue;
    totals.any += seconds_between(std::max(span.begin, covered), span.end);
    covered = span.end;
  }
  return totals;
}

void launch_timed(Stream& stream, BusyTimes& times, Work work, std::size_t index, std::function<void()> fn) {
  const auto begin = std::make_shared<BusyTimes::Clock::time_point>();
  stream.record().on_complete([begin](const std::exception_ptr&) { *begin = BusyTimes::Clock::now(); });
  stream.launch(std::move(fn));
  stream.record().on_complete([&times, work, index, begin](const std::exception_ptr& error) {
    if (!error) times.add(work, index, *begin, BusyTimes::Clock::now());
  });
}

}  // namespace strata::zero
