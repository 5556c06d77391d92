#include <gtest/gtest.h>

#include <sched.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/parallel.h"

namespace strata {
namespace {

using Ranges = std::set<std::pair<std::size_t, std::size_t>>;

Ranges ranges_of(Parallel& pool, std::size_t n, std::size_t grain) {
  std::mutex mutex;
  Ranges ranges;
  pool.parallel_for(n, grain, [&](std::size_t begin, std::size_t end) {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(ranges.emplace(begin, end).second) << "range " << begin << " ran twice";
  });
  return ranges;
}

TEST(ThreadPool, RangesAreDisjointCoverEverythingAndBeginAtTheGrain) {
  for (const std::size_t threads : {1U, 2U, 3U, 8U}) {
    const auto pool = make_thread_pool(threads);
    for (const std::size_t n : {1U, 2U, 7U, 64U, 1000U, 4097U}) {
      for (const std::size_t grain : {1U, 3U, 16U, 5000U}) {
        SCOPED_TRACE(std::to_string(threads) + " threads, n " + std::to_string(n) + ", grain " + std::to_string(grain));
        std::size_t expected_begin = 0;
        for (const auto& [begin, end] : ranges_of(*pool, n, grain)) {
          EXPECT_EQ(begin, expected_begin);
          EXPECT_EQ(begin % grain, 0U);
          EXPECT_LT(begin, end);
          expected_begin = end;
        }
        EXPECT_EQ(expected_begin, n);
      }
    }
  }
}

TEST(ThreadPool, RangesAreTheSameEveryTime) {
  const auto pool = make_thread_pool(3);
  const auto other = make_thread_pool(3);
  const Ranges first = ranges_of(*pool, 1000, 8);

  for (int i = 0; i < 20; ++i) EXPECT_EQ(ranges_of(*pool, 1000, 8), first);
  EXPECT_EQ(ranges_of(*other, 1000, 8), first);
}

TEST(ThreadPool, OfNothingCallsNothing) {
  const auto pool = make_thread_pool(2);
  EXPECT_TRUE(ranges_of(*pool, 0, 1).empty());
}

TEST(ThreadPool, SaysHowManyThreadsItHas) {
  EXPECT_EQ(make_thread_pool(1)->threads(), 1U);
  EXPECT_EQ(make_thread_pool(5)->threads(), 5U);
}

TEST(ThreadPool, ZeroThreadsMeansTheUsableCpus) {
  EXPECT_EQ(make_thread_pool(0)->threads(), usable_cpus());
}

TEST(ThreadPool, OneThreadRunsEverythingOnTheCaller) {
  const auto pool = make_thread_pool(1);
  pool->parallel_for(100, 1, [caller = std::this_thread::get_id()](std::size_t, std::size_t) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
}

TEST(ThreadPool, OfOneThreadTakesCallersAtOnce) {
  const auto pool = make_thread_pool(1);
  constexpr std::size_t kMany = 1 << 20;
  std::atomic<std::size_t> both{0};
  std::atomic<std::size_t> sum{0};
  const auto call = [&] {
    pool->parallel_for(kMany, 1, [&](std::size_t begin, std::size_t end) {
      sum += end - begin;
      ++both;
      while (both < 2) std::this_thread::yield();  // until the other caller is inside too
    });
  };
  std::thread other(call);
  call();
  other.join();
  EXPECT_EQ(sum, 2 * kMany);
}

TEST(ThreadPool, AllThreadsWorkAtOnceAndTheCallerIsOne) {
  constexpr std::ptrdiff_t kThreads = 3;
  const auto pool = make_thread_pool(kThreads);
  // The first range of each thread waits for the other threads: passes only when three threads hold a range at once.
  std::barrier together(kThreads);
  std::mutex mutex;
  std::set<std::thread::id> seen;

  pool->parallel_for(300, 1, [&](std::size_t, std::size_t) {
    bool first = false;
    {
      const std::lock_guard lock(mutex);
      first = seen.insert(std::this_thread::get_id()).second;
    }
    if (first) together.arrive_and_wait();
  });

  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kThreads));
  EXPECT_TRUE(seen.contains(std::this_thread::get_id()));
}

TEST(ThreadPool, ResultsAreVisibleToTheCallerInEveryOfManyCalls) {
  const auto pool = make_thread_pool(4);
  std::vector<int> values(1000, 0);
  for (int round = 1; round <= 300; ++round) {
    pool->parallel_for(values.size(), 1, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) ++values[i];
    });
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), 0), round * 1000);
  }
}

TEST(ThreadPool, RethrowsTheExceptionOfTheLowestRangeAfterAllHaveRun) {
  const auto pool = make_thread_pool(4);
  for (int round = 0; round < 50; ++round) {
    std::atomic<std::size_t> covered{0};
    std::string thrown;

    try {
      pool->parallel_for(1600, 1, [&](std::size_t begin, std::size_t end) {
        covered += end - begin;
        if (begin >= 300) throw std::runtime_error(std::to_string(begin));
      });
    } catch (const std::runtime_error& error) {
      thrown = error.what();
    }

    ASSERT_EQ(thrown, "300");  // ranges of 100: 4 threads, 4 ranges each
    ASSERT_EQ(covered, 1600U);
  }
}

TEST(ThreadPool, WorksAgainAfterAnException) {
  const auto pool = make_thread_pool(2);
  EXPECT_THROW(pool->parallel_for(100, 1, [](std::size_t, std::size_t) { throw std::runtime_error("x"); }),
               std::runtime_error);
  EXPECT_EQ(ranges_of(*pool, 100, 100), (Ranges{{0, 100}}));
  EXPECT_FALSE(ranges_of(*pool, 100, 1).empty());
}

TEST(ThreadPool, RefusesAGrainOfZero) {
  const auto pool = make_thread_pool(2);
  EXPECT_THROW(pool->parallel_for(10, 0, [](std::size_t, std::size_t) {}), ContractViolation);
}

TEST(ThreadPool, RefusesToNest) {
  const auto pool = make_thread_pool(2);
  EXPECT_THROW(
      pool->parallel_for(
          100, 1, [&](std::size_t, std::size_t) { pool->parallel_for(100, 1, [](std::size_t, std::size_t) {}); }),
      ContractViolation);
}

TEST(ThreadPool, RefusesToNestInTheLastRange) {
  const auto pool = make_thread_pool(2);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> worker_has_one = false;
  std::atomic<int> left = 8;  // ranges
  const auto body = [&](std::size_t, std::size_t) {
    if (std::this_thread::get_id() == caller) {
      while (!worker_has_one) std::this_thread::yield();
      --left;
      return;
    }
    worker_has_one = true;
    while (left > 1) std::this_thread::yield();
    // Time for the caller to find no range and begin to wait; if it is late, nesting is refused all the same.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    pool->parallel_for(100, 1, [](std::size_t, std::size_t) {});
  };

  EXPECT_THROW(pool->parallel_for(8, 1, body), ContractViolation);
}

TEST(UsableCpus, IgnoresOmpNumThreads) {
  const std::size_t before = usable_cpus();
  setenv("OMP_NUM_THREADS", "1", 1);
  const std::size_t after = usable_cpus();
  unsetenv("OMP_NUM_THREADS");

  EXPECT_GE(before, 1U);
  EXPECT_EQ(after, before);
}

TEST(UsableCpus, FollowsTheAffinityMask) {
  std::size_t seen = 0;
  // A thread of its own, because the mask belongs to the thread and must not stay.
  std::thread([&] {
    cpu_set_t all;
    ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &all)) {
        CPU_SET(cpu, &one);
        break;
      }
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    seen = usable_cpus();
  }).join();
  EXPECT_EQ(seen, 1U);
}

}  // namespace
}  // namespace strata
