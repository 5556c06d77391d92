#include "core/event.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "support/event_failures.h"
#include "support/manual_executor.h"

namespace strata {
namespace {

using test::failure;
using test::text_of;

TEST(Event, DefaultIsComplete) {
  const Event event;

  EXPECT_TRUE(event.submitted());
  EXPECT_TRUE(event.ready());
  EXPECT_NO_THROW(event.wait_submitted());
  EXPECT_NO_THROW(event.wait());
  EXPECT_EQ(event.wait_noexcept(), nullptr);
}

TEST(Event, DefaultRunsItsCallbackAtOnce) {
  bool ran = false;
  Event().on_complete([&](const std::exception_ptr& error) { ran = error == nullptr; });
  EXPECT_TRUE(ran);
}

TEST(Event, FailedIsSubmittedAndRethrowsItsCause) {
  const Event event = Event::failed(failure("cause"));

  EXPECT_TRUE(event.submitted());
  EXPECT_TRUE(event.ready());
  EXPECT_EQ(text_of(event.wait_noexcept()), "cause");
  EXPECT_THROW(event.wait(), DeviceError);
}

TEST(Event, FailedNeedsACause) {
  EXPECT_THROW(Event::failed(nullptr), ContractViolation);
}

TEST(Event, ThenPostsToTheExecutorOnlyWhenComplete) {
  test::ManualExecutor executor;
  EventSource source;
  std::optional<std::string> result;
  source.event().then(executor, [&](const std::exception_ptr& error) { result = text_of(error); });
  EXPECT_EQ(executor.pending(), 0U);

  source.complete();

  EXPECT_EQ(executor.pending(), 1U);
  EXPECT_FALSE(result.has_value()) << "the continuation ran on the completing thread";
  executor.run_all();
  EXPECT_EQ(result, "success");
}

TEST(Event, ThenOnACompleteEventPostsAtOnce) {
  test::ManualExecutor executor;
  std::string result;
  Event::failed(failure("cause")).then(executor, [&](const std::exception_ptr& error) { result = text_of(error); });

  executor.run_all();

  EXPECT_EQ(result, "cause");
}

TEST(EventSource, HasTwoPhases) {
  EventSource source;
  const Event event = source.event();
  EXPECT_FALSE(event.submitted());
  EXPECT_FALSE(event.ready());

  source.submit();
  EXPECT_TRUE(event.submitted());
  EXPECT_FALSE(event.ready());

  source.complete();
  EXPECT_TRUE(event.submitted());
  EXPECT_TRUE(event.ready());
}

TEST(EventSource, CompleteImpliesSubmitted) {
  EventSource source;
  source.complete();
  EXPECT_TRUE(source.event().submitted());
}

TEST(EventSource, FailImpliesSubmitted) {
  EventSource source;
  source.fail(failure("cause"));
  EXPECT_TRUE(source.event().submitted());
}

TEST(EventSource, SubmitAfterCompletionChangesNothing) {
  EventSource source;
  source.complete();
  source.submit();
  EXPECT_TRUE(source.event().ready());
}

TEST(EventSource, FailGivesTheCauseToCallbacksAndWaiters) {
  EventSource source;
  std::string early;
  source.event().on_complete([&](const std::exception_ptr& error) { early = text_of(error); });

  source.fail(failure("cause"));

  EXPECT_EQ(early, "cause");
  EXPECT_EQ(text_of(source.event().wait_noexcept()), "cause");
}

TEST(EventSource, CallbacksRunInTheOrderOfRegistration) {
  EventSource source;
  std::vector<int> order;
  for (int i = 0; i < 4; ++i) {
    source.event().on_complete([&order, i](const std::exception_ptr&) { order.push_back(i); });
  }

  source.complete();

  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3}));
}

TEST(EventSource, ACallbackRegisteredInsideACallbackRuns) {
  EventSource source;
  const Event event = source.event();
  bool inner = false;
  event.on_complete(
      [&](const std::exception_ptr&) { event.on_complete([&](const std::exception_ptr&) { inner = true; }); });

  source.complete();

  EXPECT_TRUE(inner);
}

TEST(EventSource, TheEventIsReadyInsideItsCallbacks) {
  EventSource source;
  bool ready = false;
  source.event().on_complete([&](const std::exception_ptr&) { ready = source.event().ready(); });

  source.complete();

  EXPECT_TRUE(ready);
}

TEST(EventSource, ACallbackMayDestroyTheSource) {
  auto source = std::make_unique<EventSource>();
  int calls = 0;
  source->event().on_complete([&](const std::exception_ptr&) { source.reset(); });
  source->event().on_complete([&](const std::exception_ptr&) { ++calls; });

  source->complete();

  EXPECT_EQ(source, nullptr);
  EXPECT_EQ(calls, 1);
}

TEST(EventSource, DestroyedWithoutCompletionCancels) {
  Event event;
  {
    EventSource source;
    event = source.event();
  }
  EXPECT_TRUE(event.submitted());
  EXPECT_THROW(event.wait(), Cancelled);
}

TEST(EventSource, DestroyedAfterCompletionKeepsTheResult) {
  Event event;
  {
    EventSource source;
    event = source.event();
    source.complete();
  }
  EXPECT_NO_THROW(event.wait());
}

TEST(EventSource, AMovedFromSourceNeitherCancelsNorCompletes) {
  std::optional<EventSource> first(std::in_place);
  const Event event = first->event();
  EventSource second(std::move(*first));

  EXPECT_THROW(first->complete(), ContractViolation);
  EXPECT_THROW(first->fail(failure("x")), ContractViolation);
  EXPECT_THROW(first->submit(), ContractViolation);
  EXPECT_THROW(static_cast<void>(first->event()), ContractViolation);
  first.reset();

  EXPECT_FALSE(event.ready());
  second.complete();
  EXPECT_NO_THROW(event.wait());
}

TEST(EventSource, MoveAssignmentCancelsWhatTheTargetOwed) {
  EventSource target;
  const Event owed = target.event();
  EventSource other;
  const Event kept = other.event();

  target = std::move(other);

  EXPECT_THROW(owed.wait(), Cancelled);
  EXPECT_FALSE(kept.ready());
  target.complete();
  EXPECT_NO_THROW(kept.wait());
}

TEST(EventSource, CompletesOnce) {
  EventSource source;
  source.complete();

  EXPECT_THROW(source.complete(), ContractViolation);
  EXPECT_THROW(source.fail(failure("late")), ContractViolation);
  EXPECT_NO_THROW(source.event().wait());
}

TEST(EventSource, FailNeedsACause) {
  EventSource source;
  EXPECT_THROW(source.fail(nullptr), ContractViolation);
}

TEST(EventSource, WakesWaitersOfBothPhases) {
  EventSource source;
  const Event event = source.event();
  std::atomic<bool> was_submitted{false};
  std::atomic<bool> was_complete{false};
  std::thread submit_waiter([&] {
    event.wait_submitted();
    EXPECT_TRUE(was_submitted);
  });
  std::thread complete_waiter([&] {
    EXPECT_EQ(event.wait_noexcept(), nullptr);
    EXPECT_TRUE(was_complete);
  });

  was_submitted = true;
  source.submit();
  submit_waiter.join();
  was_complete = true;
  source.complete();
  complete_waiter.join();
}

TEST(EventSource, CallbacksFromSeveralThreadsRunOnceEachWhileItCompletes) {
  constexpr int kThreads = 4;
  constexpr int kCallbacks = 50;
  for (int round = 0; round < 50; ++round) {
    EventSource source;
    const Event event = source.event();
    std::vector<std::atomic<int>> calls(kThreads * kCallbacks);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kCallbacks; ++i) {
          auto& count = calls[static_cast<std::size_t>(t * kCallbacks + i)];
          event.on_complete([&count](const std::exception_ptr&) { ++count; });
        }
      });
    }

    source.complete();
    for (std::thread& thread : threads) thread.join();

    for (const auto& count : calls) ASSERT_EQ(count, 1);
  }
}

TEST(EventSource, EverythingWrittenBeforeCompletionIsSeenByTheWaiter) {
  for (int round = 0; round < 200; ++round) {
    int value = 0;
    EventSource source;
    const Event event = source.event();
    std::thread producer([&] {
      value = 42;
      source.complete();
    });

    event.wait();
    const int seen = value;
    producer.join();

    ASSERT_EQ(seen, 42);
  }
}

}  // namespace
}  // namespace strata
