#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/event.h"
#include "support/event_failures.h"

namespace strata {
namespace {

using test::failure;
using test::text_of;

TEST(WhenAll, OfNothingIsComplete) {
  const Event all = when_all({});

  EXPECT_TRUE(all.submitted());
  EXPECT_TRUE(all.ready());
  EXPECT_NO_THROW(all.wait());
}

TEST(WhenAll, OfCompleteEventsIsComplete) {
  const std::vector<Event> events(3);
  EXPECT_TRUE(when_all(events).ready());
}

TEST(WhenAll, CompletesWithTheLast) {
  std::vector<EventSource> sources(3);
  const std::vector<Event> events = {sources[0].event(), Event(), sources[1].event(), sources[2].event()};
  const Event all = when_all(events);
  bool called = false;
  all.on_complete([&](const std::exception_ptr&) { called = true; });

  sources[2].complete();
  sources[0].complete();
  EXPECT_FALSE(all.ready());
  EXPECT_FALSE(called);

  sources[1].complete();
  EXPECT_TRUE(all.ready());
  EXPECT_TRUE(called);
}

TEST(WhenAll, IsSubmittedWhenAllAre) {
  std::vector<EventSource> sources(2);
  const std::vector<Event> events = {sources[0].event(), sources[1].event()};
  const Event all = when_all(events);

  sources[1].submit();
  EXPECT_FALSE(all.submitted());
  sources[0].submit();
  EXPECT_TRUE(all.submitted());
  EXPECT_NO_THROW(all.wait_submitted());
  EXPECT_FALSE(all.ready());
}

TEST(WhenAll, FailsWithTheFirstInTheOrderOfTheSpanNotOfTime) {
  std::vector<EventSource> sources(3);
  const std::vector<Event> events = {sources[0].event(), sources[1].event(), sources[2].event()};
  const Event all = when_all(events);
  std::string seen;
  all.on_complete([&](const std::exception_ptr& error) { seen = text_of(error); });

  sources[2].fail(failure("third"));
  sources[1].fail(failure("second"));
  EXPECT_FALSE(all.ready()) << "a failure must not end the wait for the others";
  sources[0].complete();

  EXPECT_EQ(text_of(all.wait_noexcept()), "second");
  EXPECT_EQ(seen, "second");
}

TEST(WhenAll, OfOneFailedAndCompleteOnesFails) {
  const std::vector<Event> events = {Event(), Event::failed(failure("cause")), Event()};
  EXPECT_THROW(when_all(events).wait(), DeviceError);
}

TEST(WhenAll, ACallbackOnACompleteConjunctionRunsAtOnce) {
  const std::vector<Event> events = {Event::failed(failure("a")), Event::failed(failure("b"))};
  std::string seen;
  when_all(events).on_complete([&](const std::exception_ptr& error) { seen = text_of(error); });
  EXPECT_EQ(seen, "a");
}

TEST(WhenAll, Nests) {
  std::vector<EventSource> sources(4);
  const std::vector<Event> left = {sources[0].event(), sources[1].event()};
  const std::vector<Event> right = {sources[2].event(), sources[3].event()};
  const std::vector<Event> both = {when_all(left), when_all(right)};
  const Event all = when_all(both);
  int calls = 0;
  all.on_complete([&](const std::exception_ptr&) { ++calls; });

  for (EventSource& source : sources) {
    EXPECT_FALSE(all.ready());
    source.complete();
  }

  EXPECT_TRUE(all.ready());
  EXPECT_EQ(calls, 1);
}

TEST(WhenAll, OutlivesTheSpanItWasMadeFrom) {
  EventSource a;
  EventSource b;
  Event all;
  {
    const std::vector<Event> events = {a.event(), b.event()};
    all = when_all(events);
  }

  a.complete();
  b.complete();

  EXPECT_NO_THROW(all.wait());
}

TEST(WhenAll, CompletedFromSeveralThreadsCallsOnceWithTheFirstFailure) {
  for (int round = 0; round < 100; ++round) {
    std::vector<EventSource> sources(4);
    std::vector<Event> events;
    for (const EventSource& source : sources) events.push_back(source.event());
    std::atomic<int> calls{0};
    std::string seen;
    EventSource called;
    when_all(events).on_complete([&](const std::exception_ptr& error) {
      ++calls;
      seen = text_of(error);
      called.complete();
    });
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      threads.emplace_back([&, i] { i == 0 ? sources[i].complete() : sources[i].fail(failure(std::to_string(i))); });
    }

    called.event().wait();
    for (std::thread& thread : threads) thread.join();

    ASSERT_EQ(calls, 1);
    ASSERT_EQ(seen, "1");
  }
}

}  // namespace
}  // namespace strata
