#include "offload/shard_store.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "core/error.h"
#include "support/manual_executor.h"
#include "support/shuffling_executor.h"
#include "support/store_rig.h"

namespace strata::offload {
namespace {

using test::has_stamp;
using test::ManualExecutor;
using test::ShufflingExecutor;
using test::stamp;
using test::StoreRig;
using test::StoreRigOptions;

constexpr std::uint64_t kFloatsPerPage = kPageBytes / sizeof(float);

PieceId piece(ShardId shard, std::uint32_t index) {
  return {shard, index};
}

std::shared_ptr<const Schedule> cyclic(ShardId shard, std::uint32_t pieces, Access access, const char* mode = "train") {
  std::vector<ScheduledAccess> accesses;
  for (std::uint32_t p = 0; p < pieces; ++p) accesses.push_back({piece(shard, p), access});
  return std::make_shared<Schedule>(mode, std::move(accesses));
}

void write(ShardStore& store, PieceId id, std::uint64_t value) {
  const Pin pin = store.acquire(id, Access::Write);
  stamp(pin.wait(), value);
}

bool reads_as(ShardStore& store, PieceId id, std::uint64_t value) {
  const Pin pin = store.acquire(id, Access::Read);
  return has_stamp(pin.wait(), value);
}

// One step of `schedule`: pages that are read must hold what the oracle says, pages that are written get a new value.
void run_step(ShardStore& store, const Schedule& schedule, std::uint64_t step) {
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    const ScheduledAccess& access = schedule.at(i);
    const Pin pin = store.acquire(access.piece, access.access);
    const std::span<std::byte> bytes = pin.wait();
    const std::uint64_t id = access.piece.shard.index * 1000 + access.piece.piece;
    if (reads(access.access)) {
      ASSERT_TRUE(has_stamp(bytes, step * 100000 + id)) << "piece " << access.piece.piece << " in step " << step;
    }
    if (writes(access.access)) stamp(bytes, (step + 1) * 100000 + id);
  }
}

void initialize(ShardStore& store, ShardId shard) {
  for (std::uint32_t p = 0; p < store.pieces(shard); ++p) write(store, piece(shard, p), shard.index * 1000 + p);
}

// Waits until `executor` has something to run; the other thread's call must come there.
void await_task(const ManualExecutor& executor) {
  while (executor.pending() == 0) std::this_thread::yield();
}

TEST(ShardStore, PiecesCoverTheShardAndTheLastOneIsItsTail) {
  StoreRig rig;
  const ShardId floats = rig.add(2 * kFloatsPerPage + 452);
  const ShardId halves = rig.add(2 * kFloatsPerPage + 452, TierKind::Nvme, DType::BF16);
  EXPECT_EQ(rig.store.pieces(floats), 3U);
  EXPECT_EQ(rig.store.range(piece(floats, 1)).first, kFloatsPerPage);
  EXPECT_EQ(rig.store.range(piece(floats, 1)).numel, kFloatsPerPage);
  EXPECT_EQ(rig.store.range(piece(floats, 2)).first, 2 * kFloatsPerPage);
  EXPECT_EQ(rig.store.range(piece(floats, 2)).numel, 452U);
  EXPECT_EQ(rig.store.pieces(halves), 2U);
  EXPECT_EQ(rig.store.range(piece(halves, 1)).numel, 452U);
  EXPECT_EQ(rig.store.piece_numel(DType::BF16), 2 * kFloatsPerPage);
}

TEST(ShardStore, TheTailMovesItsOwnBytesAndNoMore) {
  StoreRig rig({.slots = ShardStore::kMinSlots}, std::make_unique<LruPolicy>());
  const ShardId shard = rig.add(kFloatsPerPage + 452);
  const ShardId other = rig.add(8 * kFloatsPerPage);
  write(rig.store, piece(shard, 1), 7);
  for (std::uint32_t p = 0; p < 8; ++p) write(rig.store, piece(other, p), p);
  EXPECT_TRUE(reads_as(rig.store, piece(shard, 1), 7));
  EXPECT_EQ(rig.bytes_read(), 452 * sizeof(float));
  EXPECT_EQ(rig.bytes_written() % kPageBytes, 452 * sizeof(float));
}

TEST(ShardStore, APinOfAShardAtHomeInHostMemoryIsTheHomeItself) {
  StoreRig rig;
  const ShardId shard = rig.add(kFloatsPerPage + 10, TierKind::Host);
  write(rig.store, piece(shard, 0), 1);
  write(rig.store, piece(shard, 1), 2);
  EXPECT_TRUE(reads_as(rig.store, piece(shard, 0), 1));
  const Pin tail = rig.store.acquire(piece(shard, 1), Access::Read);
  EXPECT_TRUE(tail.ready().ready());
  EXPECT_EQ(tail.bytes().size(), 10 * sizeof(float));
  EXPECT_FALSE(rig.store.paged(shard));
  EXPECT_EQ(rig.slots.free_slots(), rig.slots.slots());
}

class EachTier : public ::testing::TestWithParam<TierKind> {};
INSTANTIATE_TEST_SUITE_P(Homes, EachTier, ::testing::Values(TierKind::Device, TierKind::Host, TierKind::Nvme),
                         [](const auto& param_info) { return std::string(name_of(param_info.param)); });

TEST_P(EachTier, APinSeesTheLatestReleasedWrite) {
  StoreRig rig({.slots = ShardStore::kMinSlots});
  const ShardId shard = rig.add(12 * kFloatsPerPage + 100, GetParam());
  for (std::uint64_t round = 1; round <= 3; ++round) {
    for (std::uint32_t p = 0; p < rig.store.pieces(shard); ++p) write(rig.store, piece(shard, p), round * 100 + p);
    for (std::uint32_t p = 0; p < rig.store.pieces(shard); ++p) {
      EXPECT_TRUE(reads_as(rig.store, piece(shard, p), round * 100 + p));
    }
  }
}

TEST_P(EachTier, AReadWritePinFindsTheOldBytesAndLeavesTheNewOnes) {
  StoreRig rig({.slots = ShardStore::kMinSlots});
  const ShardId shard = rig.add(9 * kFloatsPerPage, GetParam());
  initialize(rig.store, shard);
  const auto schedule = cyclic(shard, 9, Access::ReadWrite);
  for (std::uint64_t step = 0; step < 4; ++step) run_step(rig.store, *schedule, step);
}

TEST(ShardStore, HomesOnTheDeviceCanBeAddressedThere) {
  StoreRig rig;
  const ShardId device = rig.add(kFloatsPerPage, TierKind::Device);
  const ShardId nvme = rig.add(kFloatsPerPage, TierKind::Nvme);
  write(rig.store, piece(device, 0), 5);
  rig.store.drain_uncached();
  ASSERT_NE(rig.store.device_address(device), nullptr);
  EXPECT_TRUE(has_stamp({rig.store.device_address(device), kPageBytes}, 5));
  EXPECT_EQ(rig.store.device_address(nvme), nullptr);
}

TEST(ShardStore, AReadOfAHomeOnTheDeviceSeesWhatDeviceCodeWrote) {
  StoreRig rig;
  const ShardId shard = rig.add(kFloatsPerPage, TierKind::Device);
  write(rig.store, piece(shard, 0), 5);
  rig.store.drain_uncached();
  stamp({rig.store.device_address(shard), kPageBytes}, 6);
  EXPECT_TRUE(reads_as(rig.store, piece(shard, 0), 6));
  stamp({rig.store.device_address(shard), kPageBytes}, 7);
  EXPECT_TRUE(reads_as(rig.store, piece(shard, 0), 7));
}

TEST(ShardStore, DrainUncachedWaitsForTheWritesToALateDevice) {
  StoreRig rig({.device = {.mode = HostDeviceOptions::Mode::Adversarial, .seed = 3}});
  const ShardId shard = rig.add(20 * kFloatsPerPage, TierKind::Device);
  for (std::uint32_t p = 0; p < 20; ++p) write(rig.store, piece(shard, p), p);
  rig.store.drain_uncached();
  for (std::uint32_t p = 0; p < 20; ++p) {
    EXPECT_TRUE(has_stamp({rig.store.device_address(shard) + p * kPageBytes, kPageBytes}, p));
  }
}

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

TEST(ShardStore, AReadPinIsSharedAndSeesOneReadOnly) {
  ManualExecutor executor;
  StoreRig rig({.completions = &executor});
  const ShardId shard = rig.add(kFloatsPerPage);
  const Pin first = rig.store.acquire(piece(shard, 0), Access::Read);
  const Pin second = rig.store.acquire(piece(shard, 0), Access::Read);
  EXPECT_EQ(executor.run_all(), 1U);
  EXPECT_EQ(first.wait().data(), second.wait().data());
}

TEST(ShardStore, AWriterWaitsForReadersThatEndWithAnEvent) {
  StoreRig rig;
  const ShardId shard = rig.add(kFloatsPerPage);
  write(rig.store, piece(shard, 0), 1);
  EventSource copied;
  Pin reader = rig.store.acquire(piece(shard, 0), Access::Read);
  const std::span<std::byte> bytes = reader.bytes();
  reader.release_after(copied.event());
  auto writer = std::async(std::launch::async, [&] { write(rig.store, piece(shard, 0), 2); });
  EXPECT_TRUE(has_stamp(bytes, 1));  // the copy that the event stands for
  copied.complete();
  writer.get();
  EXPECT_TRUE(reads_as(rig.store, piece(shard, 0), 2));
}

TEST(ShardStore, AReaderWaitsForAWriterThatEndsWithAnEvent) {
  StoreRig rig;
  const ShardId shard = rig.add(kFloatsPerPage);
  EventSource copied;
  Pin writer = rig.store.acquire(piece(shard, 0), Access::Write);
  const std::span<std::byte> bytes = writer.bytes();
  writer.release_after(copied.event());
  auto reader = std::async(std::launch::async, [&] { return reads_as(rig.store, piece(shard, 0), 2); });
  stamp(bytes, 2);
  copied.complete();
  EXPECT_TRUE(reader.get());
}

TEST(ShardStore, APinThatEndsWithAFailedEventEndsToo) {
  StoreRig rig({.slots = ShardStore::kMinSlots});
  const ShardId shard = rig.add(kFloatsPerPage);
  EventSource copied;
  rig.store.acquire(piece(shard, 0), Access::Write).release_after(copied.event());
  copied.fail(std::make_exception_ptr(DeviceError("the copy failed")));
  write(rig.store, piece(shard, 0), 2);
  EXPECT_TRUE(reads_as(rig.store, piece(shard, 0), 2));
}

TEST(ShardStore, ABlockedAcquireResumesWhenAPinEnds) {
  StoreRig rig({.slots = ShardStore::kMinSlots});
  const ShardId shard = rig.add(6 * kFloatsPerPage);
  std::vector<Pin> pins;
  for (std::uint32_t p = 0; p < 5; ++p) pins.push_back(rig.store.acquire(piece(shard, p), Access::Write));
  auto blocked = std::async(std::launch::async, [&] { write(rig.store, piece(shard, 5), 5); });
  stamp(pins[2].bytes(), 2);
  pins[2].release();
  blocked.get();
  EXPECT_TRUE(reads_as(rig.store, piece(shard, 2), 2));
  EXPECT_TRUE(reads_as(rig.store, piece(shard, 5), 5));
}

TEST(ShardStore, ABlockedAcquireWaitsForOneWriteBackAndItsTimeCountsAsStall) {
  ManualExecutor executor;
  StoreRig rig({.slots = ShardStore::kMinSlots, .completions = &executor});
  const ShardId shard = rig.add(6 * kFloatsPerPage);
  for (std::uint32_t p = 0; p < 5; ++p) write(rig.store, piece(shard, p), p);
  auto blocked = std::async(std::launch::async, [&] { write(rig.store, piece(shard, 5), 5); });
  await_task(executor);
  EXPECT_EQ(executor.run_all(), 1U);
  blocked.get();
  EXPECT_GT(rig.store.stats().stall_seconds, 0);
  EXPECT_EQ(rig.bytes_written(), kPageBytes);
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

TEST(ShardStore, AFailedReadReachesThePinAndPoisonsTheStore) {
  StoreRig rig({.slots = ShardStore::kMinSlots});
  const ShardId shard = rig.add(2 * kFloatsPerPage);
  rig.blobs.fail_read(0, ENODEV);
  {
    const Pin pin = rig.store.acquire(piece(shard, 0), Access::Read);
    EXPECT_THROW((void)pin.wait(), IoError);
  }
  EXPECT_THROW((void)rig.store.acquire(piece(shard, 1), Access::Read), IoError);
  EXPECT_THROW(rig.store.drain(), IoError);
  EXPECT_THROW(rig.store.drain_uncached(), IoError);
}

TEST(ShardStore, AFailedWriteBackPoisonsTheStore) {
  StoreRig rig({.slots = ShardStore::kMinSlots});
  const ShardId shard = rig.add(6 * kFloatsPerPage);
  for (std::uint32_t p = 0; p < 5; ++p) write(rig.store, piece(shard, p), p);
  rig.blobs.fail_write(0, ENOSPC);
  EXPECT_THROW(write(rig.store, piece(shard, 5), 5), IoError);
  EXPECT_THROW(rig.store.drain(), IoError);
}

TEST(ShardStore, AShardThatIsNotPagedStaysReachableWhenTheStoreHasFailed) {
  StoreRig rig({.slots = ShardStore::kMinSlots});
  const ShardId paged = rig.add(2 * kFloatsPerPage);
  const ShardId home = rig.add(kFloatsPerPage, TierKind::Host);
  write(rig.store, piece(home, 0), 3);
  rig.blobs.fail_read(0, ENODEV);
  EXPECT_THROW((void)reads_as(rig.store, piece(paged, 0), 0), IoError);
  EXPECT_THROW((void)rig.store.acquire(piece(paged, 1), Access::Read), IoError);
  EXPECT_TRUE(reads_as(rig.store, piece(home, 0), 3));
}

TEST(ShardStore, PinsOfAShardThatIsNotPagedKeepNobodyOut) {
  StoreRig rig;
  const ShardId shard = rig.add(kFloatsPerPage, TierKind::Host);
  const Pin first = rig.store.acquire(piece(shard, 0), Access::Write);
  const Pin second = rig.store.acquire(piece(shard, 0), Access::ReadWrite);
  EXPECT_EQ(first.bytes().data(), second.bytes().data());
}

TEST(ShardStore, AFailedPrefetchIsReportedAtEveryDrain) {
  StoreRig rig({.slots = ShardStore::kMinSlots, .look_ahead_bytes = 3 * kPageBytes});
  const ShardId shard = rig.add(6 * kFloatsPerPage);
  rig.blobs.fail_read(0, ENODEV);
  rig.store.set_schedule(cyclic(shard, 6, Access::Read));
  for (int i = 0; i < 2; ++i) {
    try {
      rig.store.drain();
      FAIL() << "the failure got lost";
    } catch (const IoError& error) {
      EXPECT_EQ(error.failure().errno_value, ENODEV);
    }
  }
}

TEST(ShardStore, ABlockedCallerLearnsOfAFailure) {
  ManualExecutor executor;
  StoreRig rig({.slots = ShardStore::kMinSlots, .completions = &executor});
  const ShardId shard = rig.add(7 * kFloatsPerPage);
  std::vector<Pin> pins;
  for (std::uint32_t p = 0; p < 4; ++p) pins.push_back(rig.store.acquire(piece(shard, p), Access::Write));
  pins.push_back(rig.store.acquire(piece(shard, 4), Access::Read));
  // Every slot is pinned, so this call cannot get one; the failure must end it.
  auto blocked = std::async(std::launch::async, [&] { (void)rig.store.acquire(piece(shard, 5), Access::Read); });
  rig.blobs.fail_write(0);
  pins[0].release();  // a dirty page can leave now, and its write fails
  EXPECT_THROW(blocked.get(), IoError);
  executor.run_all();
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

TEST(ShardStore, TheDestructorWaitsForPinsThatEndWithEvents) {
  EventSource copied;
  std::thread completes;
  {
    StoreRig rig;
    const ShardId shard = rig.add(kFloatsPerPage);
    rig.store.acquire(piece(shard, 0), Access::Write).release_after(copied.event());
    completes = std::thread([&] { copied.complete(); });
  }
  completes.join();
}

TEST(ShardStore, RefusesFewerSlotsThanAnUpdateHolds) {
  EXPECT_THROW(StoreRig({.slots = ShardStore::kMinSlots - 1}), ContractViolation);
}

TEST(ShardStore, RefusesAHomeOnATierThatIsNotThere) {
  Budget budget("host", 1 << 20);
  SlotPool slots(allocate_host(budget, 8 * kPageBytes, MemoryTag::Staging), kPageBytes);
  ShardStore store({nullptr, nullptr, nullptr}, slots, std::make_unique<NextUsePolicy>(), {});
  EXPECT_THROW((void)store.add({"a", ShardKind::Param, DType::F32, 10, TierKind::Host}), ContractViolation);
}

}  // namespace
}  // namespace strata::offload
