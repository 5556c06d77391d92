#include "offload/shard_store.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "core/error.h"
#include "support/manual_executor.h"
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
using test::stamp;
using test::StoreRig;
using test::write;

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
  EXPECT_FALSE(rig.store.paged(piece(shard, 0)));
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
