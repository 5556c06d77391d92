// The store under a schedule: what it caches, reads ahead, and makes of accesses out of order.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "support/manual_executor.h"
#include "support/shuffling_executor.h"
#include "support/stamped_pages.h"
#include "support/store_rig.h"

namespace strata::offload {
namespace {

using test::await_task;
using test::cyclic;
using test::has_stamp;
using test::initialize;
using test::kFloatsPerPage;
using test::ManualExecutor;
using test::piece;
using test::reads_as;
using test::run_step;
using test::ShufflingExecutor;
using test::stamp;
using test::StoreRig;
using test::write;

TEST(ShardStore, ACachedDirtyPageCostsNoTraffic) {
  StoreRig rig({.slots = 6});
  const ShardId shard = rig.add(5 * kFloatsPerPage);
  const auto schedule = cyclic(shard, 5, Access::ReadWrite);
  rig.store.set_schedule(schedule);
  initialize(rig.store, shard);
  for (std::uint64_t step = 0; step < 10; ++step) run_step(rig.store, *schedule, step);
  EXPECT_EQ(rig.bytes_read(), 0U);
  EXPECT_EQ(rig.bytes_written(), 0U);
}

// Updates of eight pages, each of which is gathered right after: they may be as far ahead as there are slots.
struct UpdatesBesideGathers {
  static constexpr std::uint32_t kPages = 8;
  StoreRig rig{{.slots = ShardStore::kMinSlots}};
  const ShardId shard = rig.add(kPages * kFloatsPerPage);
  std::atomic<std::uint32_t> updated = 0;
  std::jthread updates;

  // Returns when the updates have ended, or wait.
  UpdatesBesideGathers() {
    std::vector<ScheduledAccess> accesses;
    for (std::uint32_t p = 0; p < kPages; ++p) {
      accesses.push_back({piece(shard, p), Access::Write, Lane::Updates});
      accesses.push_back({piece(shard, p), Access::Read, Lane::Gathers});
    }
    initialize(rig.store, shard);
    rig.store.set_schedule(std::make_shared<Schedule>("train", accesses));
    for (std::uint32_t p = 0; p < kPages; ++p) gather(p);
    updates = std::jthread([this] {
      for (std::uint32_t p = 0; p < kPages; ++p) {
        const Pin pin = rig.store.acquire(piece(shard, p), Access::Write, Lane::Updates);
        stamp(pin.wait(), 700 + p);
        updated = p + 1;
      }
    });
    // Until there are as many as slots it may wait for pages that are still on their way out.
    const auto held_back = [this] { return updated >= ShardStore::kMinSlots && rig.store.stats().waiting > 0; };
    while (updated < kPages && !held_back()) std::this_thread::yield();
  }
  // Whether the latest bytes are there.
  bool gather(std::uint32_t p, std::uint64_t value = 0) {
    const Pin pin = rig.store.acquire(piece(shard, p), Access::Read, Lane::Gathers);
    return has_stamp(pin.wait(), value);
  }
};

TEST(ShardStore, AnUpdateRatherWaitsThanThrowOutWhatIsGatheredFirst) {
  UpdatesBesideGathers beside;
  EXPECT_EQ(beside.updated, ShardStore::kMinSlots);
  const std::uint64_t before = beside.rig.bytes_read();

  for (std::uint32_t p = 0; p < UpdatesBesideGathers::kPages; ++p) {
    while (beside.updated <= p) std::this_thread::yield();
    EXPECT_TRUE(beside.gather(p, 700 + p));
  }

  beside.updates.join();
  // While no page could be thrown out, because all are pinned or on their way, an update takes the next one that can.
  EXPECT_LE(beside.rig.bytes_read(), before + kPageBytes);
}

TEST(ShardStore, AnUpdateDoesNotWaitForGathersThatDoNotGoOn) {
  UpdatesBesideGathers beside;

  beside.rig.store.let_lanes_pass();

  beside.updates.join();
  for (std::uint32_t p = 0; p < UpdatesBesideGathers::kPages; ++p) EXPECT_TRUE(beside.gather(p, 700 + p));
}

TEST(ShardStore, AnUpdateDoesNotWaitForGathersOfAScheduleThatEnds) {
  UpdatesBesideGathers beside;

  beside.rig.store.set_schedule(nullptr);

  beside.updates.join();
}

TEST(ShardStore, ACleanPageIsDroppedWithoutWriting) {
  StoreRig rig({.slots = ShardStore::kMinSlots}, std::make_unique<LruPolicy>());
  const ShardId shard = rig.add(20 * kFloatsPerPage);
  initialize(rig.store, shard);
  const auto schedule = cyclic(shard, 20, Access::Read);
  run_step(rig.store, *schedule, 0);
  const std::uint64_t after_first = rig.bytes_written();
  EXPECT_EQ(after_first, 20 * kPageBytes);
  run_step(rig.store, *schedule, 0);
  EXPECT_EQ(rig.bytes_written(), after_first);
}

TEST(ShardStore, APageThatIsWrittenFirstIsNeverRead) {
  StoreRig rig({.slots = 6, .look_ahead_bytes = 5 * kPageBytes});
  const ShardId shard = rig.add(30 * kFloatsPerPage);
  const auto schedule = cyclic(shard, 30, Access::Write);
  rig.store.set_schedule(schedule);
  for (std::uint64_t step = 0; step < 3; ++step) run_step(rig.store, *schedule, step);
  EXPECT_EQ(rig.bytes_read(), 0U);
  for (std::uint32_t p = 0; p < 30; ++p) EXPECT_TRUE(reads_as(rig.store, piece(shard, p), 300000 + p));
}

TEST(ShardStore, ThePrefetcherReadsAtMostWhatEachStepNeeds) {
  StoreRig rig({.slots = 8, .look_ahead_bytes = 3 * kPageBytes});
  const ShardId written = rig.add(6 * kFloatsPerPage);
  const ShardId read = rig.add(6 * kFloatsPerPage);
  std::vector<ScheduledAccess> accesses;
  for (std::uint32_t p = 0; p < 6; ++p) accesses.push_back({piece(written, p), Access::Write});
  for (std::uint32_t p = 0; p < 6; ++p) accesses.push_back({piece(written, p), Access::Read});
  for (std::uint32_t p = 0; p < 6; ++p) accesses.push_back({piece(read, p), Access::Read});
  const auto schedule = std::make_shared<Schedule>("train", accesses);
  initialize(rig.store, read);
  rig.store.set_schedule(schedule);
  const std::uint64_t before = rig.bytes_read();
  for (int step = 0; step < 5; ++step) {
    for (std::size_t i = 0; i < schedule->size(); ++i) {
      const Pin pin = rig.store.acquire(schedule->at(i).piece, schedule->at(i).access);
      if (i < 6) stamp(pin.wait(), 77 + i);
      if (i >= 6 && i < 12) {
        ASSERT_TRUE(has_stamp(pin.wait(), 77 + i - 6));
      }
    }
  }
  // Each step reads a page of either shard at most once.
  EXPECT_LE(rig.bytes_read() - before, 5 * 12 * kPageBytes);
  EXPECT_EQ(rig.store.stats().off_schedule, 0U);
}

TEST(ShardStore, ThePrefetcherStartsReadsBeforeTheyAreAskedFor) {
  ManualExecutor executor;
  StoreRig rig({.slots = 8, .look_ahead_bytes = 3 * kPageBytes, .completions = &executor});
  const ShardId shard = rig.add(20 * kFloatsPerPage);
  rig.store.set_schedule(cyclic(shard, 20, Access::Read));
  EXPECT_EQ(executor.pending(), 3U);
  executor.run_all();
  const Pin first = rig.store.acquire(piece(shard, 0), Access::Read);
  EXPECT_TRUE(first.ready().ready());
  EXPECT_EQ(rig.store.stats().page_hits, 1U);
  EXPECT_EQ(rig.store.stats().page_misses, 0U);
  EXPECT_EQ(executor.pending(), 1U) << "the window moved on by one page";
  executor.run_all();
}

TEST(ShardStore, WithoutLookAheadNothingIsReadUntilItIsAskedFor) {
  ManualExecutor executor;
  StoreRig rig({.slots = 8, .completions = &executor});
  const ShardId shard = rig.add(20 * kFloatsPerPage);
  rig.store.set_schedule(cyclic(shard, 20, Access::Read));
  EXPECT_EQ(executor.pending(), 0U);
}

// Traffic of a cycle in steady state: pages are counted over `kCycles` cycles after the first ones.
struct Traffic {
  double read_pages_per_cycle = 0;
  double written_pages_per_cycle = 0;
};

template <typename Policy>
Traffic traffic_of_cycles(std::size_t slots, std::uint32_t pages, std::uint64_t look_ahead_pages,
                          Executor* completions = nullptr) {
  StoreRig rig({.slots = slots, .look_ahead_bytes = look_ahead_pages * kPageBytes, .completions = completions},
               std::make_unique<Policy>());
  const ShardId shard = rig.add(pages * kFloatsPerPage);
  initialize(rig.store, shard);
  const auto schedule = cyclic(shard, pages, Access::ReadWrite);
  rig.store.set_schedule(schedule);
  std::uint64_t step = 0;
  for (; step < 3; ++step) run_step(rig.store, *schedule, step);
  const std::uint64_t read = rig.bytes_read();
  const std::uint64_t written = rig.bytes_written();
  // After pages - 1 cycles every page has played every part.
  const std::uint64_t cycles = pages - 1;
  for (; step < 3 + cycles; ++step) run_step(rig.store, *schedule, step);
  EXPECT_EQ(rig.store.stats().off_schedule, 0U);
  const double unit = static_cast<double>(kPageBytes) * static_cast<double>(cycles);
  return {static_cast<double>(rig.bytes_read() - read) / unit,
          static_cast<double>(rig.bytes_written() - written) / unit};
}

TEST(ShardStore, NextUseKeepsAFixedShareOfACycleInMemory) {
  // Belady on a cycle of s pages with N slots misses s (s - N) / (s - 1) times per cycle.
  const Traffic traffic = traffic_of_cycles<NextUsePolicy>(8, 20, 0);
  const double expected = 20.0 * (20 - 8) / 19;
  EXPECT_NEAR(traffic.read_pages_per_cycle, expected, 0.1);
  EXPECT_NEAR(traffic.written_pages_per_cycle, expected, 0.1);
}

TEST(ShardStore, ReadingAheadCostsNoMoreThanTheWindowOfThatShare) {
  for (const std::uint64_t window : {1, 2, 4}) {
    SCOPED_TRACE(window);
    const Traffic traffic = traffic_of_cycles<NextUsePolicy>(12, 30, window);
    EXPECT_LE(traffic.read_pages_per_cycle, 30.0 - 12 + 1 + static_cast<double>(window));
    EXPECT_LE(traffic.written_pages_per_cycle, 30.0 - 12 + 1 + static_cast<double>(window));
  }
}

TEST(ShardStore, ReadingAheadOverSlowCompletionsDoesNotEmptyTheCache) {
  ShufflingExecutor executor(5);
  for (const std::uint64_t window : {1, 2, 4}) {
    SCOPED_TRACE(window);
    const Traffic traffic = traffic_of_cycles<NextUsePolicy>(12, 30, window, &executor);
    EXPECT_LE(traffic.read_pages_per_cycle, 30.0 - 12 + 1 + static_cast<double>(window));
    EXPECT_LE(traffic.written_pages_per_cycle, 30.0 - 12 + 1 + static_cast<double>(window));
  }
}

TEST(ShardStore, LruKeepsNothingOfACycleThatDoesNotFit) {
  const Traffic traffic = traffic_of_cycles<LruPolicy>(8, 20, 0);
  EXPECT_EQ(traffic.read_pages_per_cycle, 20);
  EXPECT_EQ(traffic.written_pages_per_cycle, 20);
}

TEST(ShardStore, APrefetchDoesNotTakeTheSlotThatACallerWaitsFor) {
  // Five dirty pages fill the pool; the caller's write needs a slot, for which one of them must be written. The slot
  // that comes free is the caller's, not the prefetcher's: otherwise what it read is thrown away at once.
  StoreRig rig({.slots = ShardStore::kMinSlots, .look_ahead_bytes = kPageBytes});
  const ShardId cached = rig.add(5 * kFloatsPerPage);
  const ShardId read = rig.add(kFloatsPerPage);
  const ShardId stray = rig.add(kFloatsPerPage);
  write(rig.store, piece(read, 0), 3);
  initialize(rig.store, cached);  // sends `read` to its tier
  rig.store.set_schedule(std::make_shared<Schedule>(
      "train", std::vector<ScheduledAccess>{{piece(cached, 0), Access::Read}, {piece(read, 0), Access::Read}}));
  const std::uint64_t before = rig.bytes_read();
  std::vector<Pin> pins;
  for (std::uint32_t p = 1; p < 5; ++p) pins.push_back(rig.store.acquire(piece(cached, p), Access::Read));
  write(rig.store, piece(stray, 0), 9);
  EXPECT_LE(rig.bytes_read() - before, kPageBytes) << "a prefetched page was dropped and read again";
}

TEST(ShardStore, APageOnItsWayOutCanBeReadAndStaysWhenTheScheduleWantsItSoon) {
  ManualExecutor executor;
  StoreRig rig({.slots = ShardStore::kMinSlots, .completions = &executor});
  const ShardId shard = rig.add(6 * kFloatsPerPage);
  for (std::uint32_t p = 0; p < 5; ++p) write(rig.store, piece(shard, p), p);
  auto blocked = std::async(std::launch::async, [&] { write(rig.store, piece(shard, 5), 5); });
  await_task(executor);  // a page is leaving now: all of them can still be read
  for (std::uint32_t p = 0; p < 5; ++p) {
    const Pin pin = rig.store.acquire(piece(shard, p), Access::Read);
    EXPECT_TRUE(pin.ready().ready());
    EXPECT_TRUE(has_stamp(pin.bytes(), p));
  }
  executor.run_all();
  blocked.get();
  EXPECT_EQ(rig.bytes_read(), 0U);
}

TEST(ShardStore, AnAccessOutOfScheduleIsCountedAndDoesNotLoseTheSchedule) {
  StoreRig rig({.slots = 6, .look_ahead_bytes = 2 * kPageBytes});
  const ShardId shard = rig.add(8 * kFloatsPerPage);
  const ShardId stray = rig.add(kFloatsPerPage);
  initialize(rig.store, shard);
  write(rig.store, piece(stray, 0), 4);
  const auto schedule = cyclic(shard, 8, Access::ReadWrite);
  rig.store.set_schedule(schedule);
  run_step(rig.store, *schedule, 0);
  EXPECT_EQ(rig.store.stats().off_schedule, 0U);
  EXPECT_TRUE(reads_as(rig.store, piece(stray, 0), 4));
  EXPECT_EQ(rig.store.stats().off_schedule, 1U);
  run_step(rig.store, *schedule, 1);
  EXPECT_EQ(rig.store.stats().off_schedule, 1U);
}

TEST(ShardStore, ASkippedAccessCostsOneCountNotTheSchedule) {
  StoreRig rig({.slots = 6, .look_ahead_bytes = 2 * kPageBytes});
  const ShardId shard = rig.add(8 * kFloatsPerPage);
  initialize(rig.store, shard);
  rig.store.set_schedule(cyclic(shard, 8, Access::Read));
  for (const std::uint32_t p : {0, 1, 3, 4, 5, 6, 7, 0, 1}) EXPECT_TRUE(reads_as(rig.store, piece(shard, p), p));
  EXPECT_EQ(rig.store.stats().off_schedule, 1U);
}

TEST(ShardStore, AnotherScheduleStartsAtItsBeginning) {
  StoreRig rig({.slots = 6});
  const ShardId shard = rig.add(8 * kFloatsPerPage);
  initialize(rig.store, shard);
  rig.store.set_schedule(cyclic(shard, 8, Access::Read));
  for (const std::uint32_t p : {0, 1, 2}) EXPECT_TRUE(reads_as(rig.store, piece(shard, p), p));
  rig.store.set_schedule(cyclic(shard, 4, Access::Read, "evaluate"));
  for (const std::uint32_t p : {0, 1, 2, 3, 0}) EXPECT_TRUE(reads_as(rig.store, piece(shard, p), p));
  EXPECT_EQ(rig.store.stats().off_schedule, 0U);
}

TEST(ShardStore, PagesOfTheFollowingModeStayInMemoryInTheOrderOfTheirUse) {
  // An evaluation reads three pages over and over in a pool of six; of the training states, the ones that training
  // wants first survive it.
  StoreRig rig({.slots = 6});
  const ShardId states = rig.add(6 * kFloatsPerPage);
  const ShardId evaluated = rig.add(3 * kFloatsPerPage);
  initialize(rig.store, evaluated);
  initialize(rig.store, states);
  const auto train = cyclic(states, 6, Access::ReadWrite);
  rig.store.set_schedule(cyclic(evaluated, 3, Access::Read, "evaluate"), train);
  for (int i = 0; i < 3; ++i) {
    for (std::uint32_t p = 0; p < 3; ++p) {
      EXPECT_TRUE(reads_as(rig.store, piece(evaluated, p), evaluated.index * 1000 + p));
    }
  }
  rig.store.set_schedule(train);
  const std::uint64_t before = rig.bytes_read();
  for (std::uint32_t p = 0; p < 3; ++p) EXPECT_TRUE(reads_as(rig.store, piece(states, p), p));
  EXPECT_EQ(rig.bytes_read(), before);
}

TEST(ShardStore, ChangingTheScheduleWithPagesOnTheWayIsSafe) {
  ShufflingExecutor executor(11);
  StoreRig rig({.slots = 6, .look_ahead_bytes = 4 * kPageBytes, .completions = &executor});
  const ShardId shard = rig.add(16 * kFloatsPerPage);
  initialize(rig.store, shard);
  const auto train = cyclic(shard, 16, Access::ReadWrite);
  const auto evaluate = cyclic(shard, 9, Access::Read, "evaluate");
  for (std::uint64_t step = 0; step < 20; ++step) {
    rig.store.set_schedule(train);
    run_step(rig.store, *train, step);
    rig.store.set_schedule(evaluate, train);
    run_step(rig.store, *evaluate, step + 1);
  }
}

}  // namespace
}  // namespace strata::offload
