#include "core/executor.h"

#include <gtest/gtest.h>

#include <pthread.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/event.h"

namespace strata {
namespace {

TEST(ThreadExecutor, RunsTasksInTheOrderOfPosting) {
  std::vector<int> order;
  ThreadExecutor executor("order");

  for (int i = 0; i < 100; ++i) executor.post([&order, i] { order.push_back(i); });
  executor.drain();

  ASSERT_EQ(order.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(ThreadExecutor, RunsTasksOnOneOtherThread) {
  std::vector<std::thread::id> ids;
  ThreadExecutor executor("one");

  for (int i = 0; i < 3; ++i) executor.post([&ids] { ids.push_back(std::this_thread::get_id()); });
  executor.drain();

  EXPECT_NE(ids.at(0), std::this_thread::get_id());
  EXPECT_EQ(ids.at(1), ids.at(0));
  EXPECT_EQ(ids.at(2), ids.at(0));
}

TEST(ThreadExecutor, NamesItsThread) {
  std::array<char, 16> name{};
  {
    ThreadExecutor executor("a-name-of-twenty-one");
    // The constructor returned, so the name is set before any task runs.
    executor.post([&] { pthread_getname_np(pthread_self(), name.data(), name.size()); });
  }
  EXPECT_STREQ(name.data(), "a-name-of-twent");
}

TEST(ThreadExecutor, DestructorRunsWhatIsQueued) {
  int ran = 0;
  {
    EventSource gate;
    ThreadExecutor executor("queued");
    executor.post([opened = gate.event()] { opened.wait(); });
    for (int i = 0; i < 10; ++i) executor.post([&ran] { ++ran; });
    gate.complete();
  }
  EXPECT_EQ(ran, 10);
}

TEST(ThreadExecutor, DestructorRunsWhatItsTasksPost) {
  bool ran = false;
  {
    ThreadExecutor executor("nested");
    executor.post([&] { executor.post([&] { ran = true; }); });
  }
  EXPECT_TRUE(ran);
}

TEST(ThreadExecutor, DrainOnItsOwnThreadIsRefused) {
  bool refused = false;
  {
    ThreadExecutor executor("self");
    executor.post([&] {
      try {
        executor.drain();
      } catch (const ContractViolation&) {
        refused = true;
      }
    });
  }
  EXPECT_TRUE(refused);
}

TEST(ThreadExecutor, ATaskLetsGoOfWhatItHoldsBeforeTheNextRuns) {
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  bool expired = false;
  ThreadExecutor executor("release");

  executor.post([held = std::move(held)] {});
  executor.post([&] { expired = watch.expired(); });
  executor.drain();

  EXPECT_TRUE(expired);
}

TEST(ThreadExecutor, TakesTasksFromSeveralThreads) {
  int ran = 0;  // touched by the executor's thread only
  ThreadExecutor executor("many");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) executor.post([&ran] { ++ran; });
    });
  }
  for (std::thread& thread : threads) thread.join();

  executor.drain();

  EXPECT_EQ(ran, 2000);
}

TEST(ThreadExecutor, ContinuationsOfEventsRunOnIt) {
  ThreadExecutor executor("then");
  EventSource source;
  std::thread::id ran_on;
  source.event().then(executor, [&](const std::exception_ptr&) { ran_on = std::this_thread::get_id(); });

  source.complete();
  executor.drain();

  EXPECT_NE(ran_on, std::thread::id());
  EXPECT_NE(ran_on, std::this_thread::get_id());
}

}  // namespace
}  // namespace strata
