// The store under a schedule that says which pages are kept.
#include <gtest/gtest.h>

#include "support/manual_executor.h"
#include "support/stamped_pages.h"
#include "support/store_rig.h"

namespace strata::offload {
namespace {

using test::initialize;
using test::kFloatsPerPage;
using test::ManualExecutor;
using test::piece;
using test::reads_as;
using test::run_step;
using test::StoreRig;
using test::write;

std::shared_ptr<const Schedule> keeping(ShardId shard, std::uint32_t pieces, Access access,
                                        const std::vector<std::uint32_t>& kept, const char* mode = "train") {
  std::vector<ScheduledAccess> accesses;
  for (std::uint32_t p = 0; p < pieces; ++p) accesses.push_back({piece(shard, p), access});
  std::vector<PieceId> pages;
  for (const std::uint32_t p : kept) pages.push_back(piece(shard, p));
  return std::make_shared<Schedule>(mode, std::move(accesses), pages);
}

TEST(PlannedStore, KeptPagesCostNoTrafficAndTheOthersAtMostOnceEachWay) {
  StoreRig rig({.slots = 8, .look_ahead_bytes = 2 * kPageBytes});
  const ShardId shard = rig.add(12 * kFloatsPerPage);
  initialize(rig.store, shard);
  const auto schedule = keeping(shard, 12, Access::ReadWrite, {1, 5, 9});
  rig.store.set_schedule(schedule);
  for (std::uint64_t step = 0; step < 3; ++step) run_step(rig.store, *schedule, step);
  const std::uint64_t read = rig.bytes_read();
  const std::uint64_t written = rig.bytes_written();
  for (std::uint64_t step = 3; step < 8; ++step) run_step(rig.store, *schedule, step);
  EXPECT_LE(rig.bytes_read() - read, 5 * 9 * kPageBytes);
  EXPECT_GE(rig.bytes_read() - read, 5 * (12 - 8) * kPageBytes);
  EXPECT_EQ(rig.bytes_written() - written, 5 * 9 * kPageBytes);
}

TEST(PlannedStore, APageThatIsNotKeptIsWrittenWhenItIsReleasedAndAKeptOneIsNot) {
  ManualExecutor executor;
  StoreRig rig({.slots = 8, .look_ahead_bytes = 0, .completions = &executor});
  const ShardId shard = rig.add(20 * kFloatsPerPage);
  rig.store.set_schedule(keeping(shard, 20, Access::Write, {0}));
  write(rig.store, piece(shard, 0), 5);
  EXPECT_EQ(executor.pending(), 0U);
  write(rig.store, piece(shard, 1), 6);
  EXPECT_EQ(executor.pending(), 1U) << "a page that must go is written while the drive is idle";
  EXPECT_TRUE(reads_as(rig.store, piece(shard, 1), 6)) << "and can be read meanwhile";
  executor.run_all();
  EXPECT_EQ(rig.bytes_written(), kPageBytes);
  EXPECT_TRUE(reads_as(rig.store, piece(shard, 1), 6));
  EXPECT_EQ(rig.bytes_read(), 0U) << "it stays readable until its slot is wanted";
}

TEST(PlannedStore, APageThatIsWantedAgainWithinTheWindowIsNotWrittenBetween) {
  ManualExecutor executor;
  StoreRig rig({.slots = 8, .look_ahead_bytes = 3 * kPageBytes, .completions = &executor});
  const ShardId shard = rig.add(2 * kFloatsPerPage);
  rig.store.set_schedule(std::make_shared<Schedule>("train",
                                                    std::vector<ScheduledAccess>{{piece(shard, 0), Access::Write},
                                                                                 {piece(shard, 0), Access::ReadWrite},
                                                                                 {piece(shard, 1), Access::Write},
                                                                                 {piece(shard, 1), Access::Write},
                                                                                 {piece(shard, 1), Access::Write},
                                                                                 {piece(shard, 1), Access::Write}},
                                                    std::vector<PieceId>{}));
  write(rig.store, piece(shard, 0), 5);
  EXPECT_EQ(executor.pending(), 0U);
  write(rig.store, piece(shard, 0), 6);
  EXPECT_EQ(executor.pending(), 1U);
  executor.run_all();
}

TEST(PlannedStore, ACallerWaitsForAPageOnItsWayOutInsteadOfEmptyingTheCache) {
  ManualExecutor executor;
  StoreRig rig({.slots = ShardStore::kMinSlots, .completions = &executor});
  const ShardId shard = rig.add(20 * kFloatsPerPage);
  rig.store.set_schedule(keeping(shard, 20, Access::Write, {0, 1, 2, 3}));
  for (std::uint32_t p = 0; p < 5; ++p) write(rig.store, piece(shard, p), p);
  ASSERT_EQ(executor.pending(), 1U);  // page 4 leaves
  std::thread blocked([&] { write(rig.store, piece(shard, 5), 5); });
  while (rig.store.stats().waiting == 0) std::this_thread::yield();
  EXPECT_EQ(executor.pending(), 1U) << "a kept page was thrown out";
  executor.run_all();
  blocked.join();
  executor.run_all();
  for (std::uint32_t p = 0; p < 4; ++p) EXPECT_TRUE(reads_as(rig.store, piece(shard, p), p));
  EXPECT_EQ(rig.bytes_read(), 0U);
}

TEST(PlannedStore, WhenOnlyKeptPagesAreLeftACallerStillEnds) {
  StoreRig rig({.slots = ShardStore::kMinSlots});
  const ShardId shard = rig.add(20 * kFloatsPerPage);
  rig.store.set_schedule(keeping(shard, 20, Access::Write, {0, 1, 2, 3, 4}));
  for (std::uint32_t p = 0; p < 20; ++p) write(rig.store, piece(shard, p), p);
  for (std::uint32_t p = 0; p < 20; ++p) EXPECT_TRUE(reads_as(rig.store, piece(shard, p), p));
}

TEST(PlannedStore, AnotherModeLeavesWhatTrainingKeeps) {
  StoreRig rig({.slots = 8, .look_ahead_bytes = 2 * kPageBytes});
  const ShardId states = rig.add(10 * kFloatsPerPage);
  const ShardId weights = rig.add(10 * kFloatsPerPage);
  initialize(rig.store, weights);
  initialize(rig.store, states);
  const auto train = keeping(states, 10, Access::ReadWrite, {0, 3, 6, 9});
  rig.store.set_schedule(train);
  run_step(rig.store, *train, 0);
  rig.store.set_schedule(keeping(weights, 10, Access::Read, {}, "evaluate"), train);
  for (int i = 0; i < 2; ++i) {
    for (std::uint32_t p = 0; p < 10; ++p) {
      EXPECT_TRUE(reads_as(rig.store, piece(weights, p), weights.index * 1000 + p));
    }
  }
  rig.store.set_schedule(nullptr);
  const std::uint64_t before = rig.bytes_read();
  for (const std::uint32_t p : {0, 3, 6, 9}) EXPECT_TRUE(reads_as(rig.store, piece(states, p), 100000 + p));
  EXPECT_EQ(rig.bytes_read(), before);
}

TEST(PlannedStore, KeptPagesDoNotCountInTheWindow) {
  ManualExecutor executor;
  StoreRig rig({.slots = 8, .look_ahead_bytes = 2 * kPageBytes, .completions = &executor});
  const ShardId shard = rig.add(20 * kFloatsPerPage);
  rig.store.set_schedule(keeping(shard, 20, Access::Read, {0, 1, 3}));
  EXPECT_EQ(executor.pending(), 5U) << "pages 0, 1 and 3 are kept, 2 and 4 fill the window";
  executor.run_all();
}

TEST(PlannedStore, APageOfTheWindowThatACallerPushedOutIsReadAheadAgain) {
  StoreRig rig({.slots = ShardStore::kMinSlots, .look_ahead_bytes = 4 * kPageBytes});
  const ShardId shard = rig.add(20 * kFloatsPerPage);
  const ShardId strays = rig.add(2 * kFloatsPerPage);
  rig.store.set_schedule(keeping(shard, 20, Access::Read, {}));
  EXPECT_EQ(rig.bytes_read(), 4 * kPageBytes);
  {
    const Pin first = rig.store.acquire(piece(strays, 0), Access::Read);
    const Pin second = rig.store.acquire(piece(strays, 1), Access::Read);  // in the slot of page 3
    EXPECT_EQ(rig.bytes_read(), 6 * kPageBytes);
  }
  EXPECT_EQ(rig.bytes_read(), 7 * kPageBytes);
  for (std::uint32_t p = 0; p < 4; ++p) (void)rig.store.acquire(piece(shard, p), Access::Read);
  EXPECT_EQ(rig.store.stats().page_misses, 2U) << "only the strays had to be fetched on demand";
}

TEST(PlannedStore, ANewLookAheadHoldsAtOnce) {
  ManualExecutor executor;
  StoreRig rig({.slots = 8, .completions = &executor});
  const ShardId shard = rig.add(20 * kFloatsPerPage);
  rig.store.set_schedule(keeping(shard, 20, Access::Read, {}));
  EXPECT_EQ(executor.pending(), 0U);
  rig.store.set_look_ahead(3 * kPageBytes);
  EXPECT_EQ(executor.pending(), 3U);
  executor.run_all();
  rig.store.set_look_ahead(kPageBytes);
  EXPECT_EQ(executor.pending(), 0U);
}

}  // namespace
}  // namespace strata::offload
