#include "zero/busy_times.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/error.h"
#include "core/host_device.h"

namespace strata::zero {
namespace {

using namespace std::chrono_literals;

const BusyTimes::Clock::time_point kStart{};

TEST(BusyTimes, SumsEachKindOfWork) {
  BusyTimes times;
  times.add(Work::Forward, 0, kStart, kStart + 1s);
  times.add(Work::Backward, 0, kStart + 1s, kStart + 3s);
  times.add(Work::Forward, 1, kStart + 5s, kStart + 6s);
  const BusyTimes::Totals totals = times.take();
  EXPECT_DOUBLE_EQ(totals.of(Work::Forward), 2);
  EXPECT_DOUBLE_EQ(totals.of(Work::Backward), 2);
  EXPECT_DOUBLE_EQ(totals.of(Work::Update), 0);
  EXPECT_DOUBLE_EQ(totals.any, 4);
}

TEST(BusyTimes, CountsOverlappingWorkOnceInTheUnion) {
  BusyTimes times;
  times.add(Work::Update, 0, kStart + 1s, kStart + 4s);  // as they end, not as they begin
  times.add(Work::Forward, 0, kStart, kStart + 2s);
  times.add(Work::Forward, 1, kStart + 2s, kStart + 3s);  // inside
  times.add(Work::Forward, 2, kStart + 6s, kStart + 7s);
  const BusyTimes::Totals totals = times.take();
  EXPECT_DOUBLE_EQ(totals.of(Work::Update), 3);
  EXPECT_DOUBLE_EQ(totals.of(Work::Forward), 4);
  EXPECT_DOUBLE_EQ(totals.any, 5);
}

TEST(BusyTimes, ForgetsWhatWasTaken) {
  BusyTimes times;
  times.add(Work::Forward, 0, kStart, kStart + 1s);
  (void)times.take();
  EXPECT_EQ(times.take().any, 0);
}

TEST(BusyTimes, DrawsLayersAndUpdatesInRowsOfTheirOwn) {
  Trace trace;
  BusyTimes times(&trace);
  { const Stopwatch watch(times, Work::Backward, 7); }
  { const Stopwatch watch(times, Work::Update, 2); }
  const std::vector<Trace::Span> spans = trace.spans();
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].name, "backward 7");
  EXPECT_EQ(spans[1].name, "update 2");
  EXPECT_NE(spans[0].row, spans[1].row);
  EXPECT_GT(times.take().any, 0);
}

TEST(BusyTimes, UpdatesOnTheDeviceHaveARowOfTheirOwn) {
  Trace trace;
  BusyTimes times(&trace);
  { const Stopwatch watch(times, Work::Update, 2); }
  { const Stopwatch watch(times, Work::DeviceUpdate, 2); }
  const std::vector<Trace::Span> spans = trace.spans();
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_NE(spans[0].row, spans[1].row);
}

TEST(LaunchTimed, CountsFromTheEndOfWhatWasQueuedBefore) {
  Trace trace;
  BusyTimes times(&trace);
  HostDevice device(0);
  const auto stream = device.create_stream("compute");
  BusyTimes::Clock::time_point before, inside;
  stream->launch([&] {
    std::this_thread::sleep_for(10ms);
    before = BusyTimes::Clock::now();
  });

  launch_timed(*stream, times, Work::Forward, 3, [&] { inside = BusyTimes::Clock::now(); });
  stream->record().wait();

  const std::vector<Trace::Span> spans = trace.spans();
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].name, "forward 3");
  EXPECT_GE(spans[0].begin, before);
  EXPECT_LE(spans[0].begin, inside);
  EXPECT_GE(spans[0].end, inside);
  EXPECT_GT(times.take().of(Work::Forward), 0);
}

TEST(LaunchTimed, FailedWorkAddsNothing) {
  BusyTimes times;
  HostDevice device(0);
  const auto stream = device.create_stream("compute");

  launch_timed(*stream, times, Work::Forward, 3, [] { throw DeviceError("no more"); });

  EXPECT_NE(stream->record().wait_noexcept(), nullptr);
  EXPECT_EQ(times.take().any, 0);
}

}  // namespace
}  // namespace strata::zero
