// The fakes in tests/support carry other rooms' tests, so what they promise is tested too.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "support/faulty_blob_store.h"
#include "support/manual_executor.h"
#include "support/memory_blob_store.h"

namespace strata::test {
namespace {

using Bytes = std::array<std::byte, 4>;

constexpr Bytes kOneToFour = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};

TEST(ManualExecutor, RunsTheChosenTask) {
  ManualExecutor executor;
  std::string order;
  for (const char name : {'a', 'b', 'c'}) executor.post([&order, name] { order += name; });

  executor.run(1);
  executor.run(1);
  executor.run_one();

  EXPECT_EQ(order, "bca");
  EXPECT_FALSE(executor.run_one());
  EXPECT_THROW(executor.run(0), ContractViolation);
}

TEST(ManualExecutor, RunAllRunsWhatTasksPost) {
  ManualExecutor executor;
  bool inner = false;
  executor.post([&] { executor.post([&] { inner = true; }); });

  EXPECT_EQ(executor.run_all(), 2U);
  EXPECT_TRUE(inner);
}

TEST(ManualExecutor, ShuffledRunsEachTaskOnce) {
  ManualExecutor executor;
  std::vector<int> runs(20, 0);
  for (int& count : runs) executor.post([&count] { ++count; });
  std::mt19937_64 random(3);

  EXPECT_EQ(executor.run_all_shuffled(random), 20U);
  EXPECT_EQ(runs, std::vector<int>(20, 1));
}

TEST(ManualExecutor, DestroyedCancelsWhatItNeverRan) {
  Event event;
  {
    ManualExecutor executor;
    auto source = std::make_shared<EventSource>();
    event = source->event();
    executor.post([source] { source->complete(); });
    source.reset();
  }
  EXPECT_THROW(event.wait(), Cancelled);
}

TEST(MemoryBlobStore, RoundTripsAtAnyOffset) {
  MemoryBlobStore store;
  const BlobId blob = store.create("b", 10);

  store.write(blob, 3, kOneToFour).wait();
  Bytes back{};
  store.read(blob, 3, back, IoUrgency::Demand).wait();

  EXPECT_EQ(back, kOneToFour);
  EXPECT_EQ(store.contents(blob)[2], MemoryBlobStore::kUnwritten);
  EXPECT_EQ(store.name(blob), "b");
}

TEST(MemoryBlobStore, WithAnExecutorMovesBytesWhenTheTaskRuns) {
  ManualExecutor executor;
  MemoryBlobStore store(executor);
  const BlobId blob = store.create("b", 4);

  const Event event = store.write(blob, 0, kOneToFour);
  EXPECT_TRUE(event.submitted());
  EXPECT_FALSE(event.ready());
  EXPECT_EQ(store.contents(blob)[0], MemoryBlobStore::kUnwritten);

  executor.run_all();
  EXPECT_TRUE(event.ready());
  EXPECT_EQ(store.contents(blob)[0], std::byte{1});
}

TEST(MemoryBlobStore, RefusesAnOverlapWithAWriteInFlight) {
  ManualExecutor executor;
  MemoryBlobStore store(executor);
  const BlobId blob = store.create("b", 8);
  Bytes back{};
  const Event first = store.write(blob, 0, kOneToFour);

  EXPECT_THROW(store.read(blob, 3, back, IoUrgency::Demand), ContractViolation);
  EXPECT_THROW(store.write(blob, 3, kOneToFour), ContractViolation);
  EXPECT_NO_THROW(store.write(blob, 4, kOneToFour));
  executor.run_all();
  EXPECT_NO_THROW(store.read(blob, 3, back, IoUrgency::Demand));
}

TEST(MemoryBlobStore, AllowsReadsOfTheSameBytes) {
  ManualExecutor executor;
  MemoryBlobStore store(executor);
  const BlobId blob = store.create("b", 4);
  Bytes a{};
  Bytes b{};

  const Event first = store.read(blob, 0, a, IoUrgency::Demand);
  EXPECT_NO_THROW(store.read(blob, 0, b, IoUrgency::Prefetch));
}

TEST(MemoryBlobStore, RefusesARangeOutsideTheBlob) {
  MemoryBlobStore store;
  const BlobId blob = store.create("b", 6);

  EXPECT_THROW(store.write(blob, 3, kOneToFour), ContractViolation);
  EXPECT_THROW(store.write(blob, 7, {}), ContractViolation);
  EXPECT_THROW(store.write(BlobId{1}, 0, kOneToFour), ContractViolation);
}

TEST(MemoryBlobStore, CountsBytesAndRequests) {
  MemoryBlobStore store;
  const BlobId blob = store.create("b", 8);
  Bytes back{};
  store.write(blob, 0, kOneToFour).wait();
  store.write(blob, 4, kOneToFour).wait();
  store.read(blob, 2, back, IoUrgency::Demand).wait();

  EXPECT_EQ(store.stats().bytes_written, 8U);
  EXPECT_EQ(store.stats().bytes_read, 4U);
  EXPECT_EQ(store.stats().requests, 3U);
}

TEST(FaultyBlobStore, FailsTheNthWriteOnly) {
  MemoryBlobStore inner;
  FaultyBlobStore store(inner);
  const BlobId blob = store.create("b", 12);
  store.fail_write(1, ENOSPC);

  EXPECT_NO_THROW(store.write(blob, 0, kOneToFour).wait());
  try {
    store.write(blob, 4, kOneToFour).wait();
    FAIL();
  } catch (const IoError& error) {
    EXPECT_EQ(error.failure().errno_value, ENOSPC);
    EXPECT_EQ(error.failure().offset_bytes, 4U);
  }
  EXPECT_NO_THROW(store.write(blob, 8, kOneToFour).wait());
  EXPECT_EQ(inner.contents(blob)[4], MemoryBlobStore::kUnwritten);
  EXPECT_EQ(inner.contents(blob)[8], std::byte{1});
}

TEST(FaultyBlobStore, FailsTheNextReadOnly) {
  MemoryBlobStore inner;
  FaultyBlobStore store(inner);
  const BlobId blob = store.create("b", 4);
  Bytes back{};
  store.fail_read(0);

  EXPECT_NO_THROW(store.write(blob, 0, kOneToFour).wait());
  EXPECT_THROW(store.read(blob, 0, back, IoUrgency::Demand).wait(), IoError);
  EXPECT_EQ(back, Bytes{});
  EXPECT_NO_THROW(store.read(blob, 0, back, IoUrgency::Demand).wait());
  EXPECT_EQ(back, kOneToFour);
}

}  // namespace
}  // namespace strata::test
