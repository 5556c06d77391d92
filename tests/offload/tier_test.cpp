#include "offload/tier.h"

#include <gtest/gtest.h>

#include "core/bytes.h"
#include "core/error.h"
#include "core/host_device.h"
#include "support/faulty_blob_store.h"
#include "support/memory_blob_store.h"
#include "support/store_rig.h"

namespace strata::offload {
namespace {

using test::has_stamp;
using test::stamp;

TEST(HostTier, ItsHomesAreUsedInPlace) {
  Budget budget("host", 1 << 20);
  HostTier tier(budget);
  const Home first = tier.create("a", 5000, MemoryTag::OptimState);
  const Home second = tier.create("b", 100, MemoryTag::Param);
  stamp({tier.host_address(first), 5000}, 1);
  stamp({tier.host_address(second), 100}, 2);
  EXPECT_TRUE(has_stamp({tier.host_address(first), 5000}, 1));
  EXPECT_EQ(tier.device_address(first), nullptr);
}

TEST(HostTier, PaysForItsHomesUnderTheirTag) {
  Budget budget("host", 1 << 20);
  HostTier tier(budget);
  (void)tier.create("a", 5000, MemoryTag::OptimState);
  EXPECT_EQ(budget.used(MemoryTag::OptimState), 2 * kPageBytes);
  EXPECT_THROW((void)tier.create("b", 2 << 20, MemoryTag::Param), OutOfBudget);
}

TEST(HostTier, HasNoLink) {
  Budget budget("host", 1 << 20);
  HostTier tier(budget);
  const Home home = tier.create("a", 16, MemoryTag::Param);
  std::array<std::byte, 16> bytes{};
  EXPECT_THROW((void)tier.read(home, 0, bytes, IoUrgency::Demand), ContractViolation);
  EXPECT_THROW((void)tier.write(home, 0, bytes), ContractViolation);
}

TEST(DeviceTier, BytesComeBackThroughTheLink) {
  HostDevice device(1 << 20);
  DeviceTier tier(device);
  const Home home = tier.create("a", 3 * kPageBytes, MemoryTag::Grad);
  std::vector<std::byte> sent(500);
  std::vector<std::byte> received(500);
  stamp(sent, 7);
  tier.write(home, kPageBytes, sent).wait();
  tier.read(home, kPageBytes, received, IoUrgency::Demand).wait();
  EXPECT_TRUE(has_stamp(received, 7));
  EXPECT_TRUE(has_stamp({tier.device_address(home) + kPageBytes, 500}, 7));
  EXPECT_EQ(tier.host_address(home), nullptr);
  EXPECT_FALSE(tier.cacheable());
}

TEST(DeviceTier, CountsBytesOfEachDirection) {
  HostDevice device(1 << 20);
  DeviceTier tier(device);
  const Home home = tier.create("a", kPageBytes, MemoryTag::Grad);
  std::vector<std::byte> bytes(300);
  tier.write(home, 0, bytes).wait();
  tier.read(home, 0, std::span(bytes).first(100), IoUrgency::Demand).wait();
  tier.read(home, 0, std::span(bytes).first(100), IoUrgency::Demand).wait();
  EXPECT_EQ(tier.stats().bytes_written, 300U);
  EXPECT_EQ(tier.stats().bytes_read, 200U);
}

TEST(DeviceTier, PaysOutOfTheDeviceBudget) {
  HostDevice device(1 << 20);
  DeviceTier tier(device);
  (void)tier.create("a", kPageBytes, MemoryTag::Grad);
  EXPECT_EQ(device.budget().used(MemoryTag::Grad), kPageBytes);
  EXPECT_THROW((void)tier.create("b", 2 << 20, MemoryTag::Param), OutOfBudget);
}

TEST(BlobTier, BytesComeBackAndTheBlobIsNamedAfterTheShard) {
  test::MemoryBlobStore store;
  BlobTier tier(store);
  (void)tier.create("first", 100, MemoryTag::Param);
  const Home home = tier.create("layer.3/exp_avg", 3 * kPageBytes, MemoryTag::OptimState);
  std::vector<std::byte> sent(500);
  std::vector<std::byte> received(500);
  stamp(sent, 7);
  tier.write(home, kPageBytes, sent).wait();
  tier.read(home, kPageBytes, received, IoUrgency::Prefetch).wait();
  EXPECT_TRUE(has_stamp(received, 7));
  EXPECT_EQ(store.name({home.index}), "layer.3/exp_avg");
  EXPECT_EQ(tier.host_address(home), nullptr);
  EXPECT_EQ(tier.device_address(home), nullptr);
  EXPECT_TRUE(tier.cacheable());
  EXPECT_EQ(tier.stats().bytes_read, 500U);
  EXPECT_EQ(tier.stats().bytes_written, 500U);
}

TEST(BlobTier, PassesFailuresOn) {
  test::MemoryBlobStore memory;
  test::FaultyBlobStore store(memory);
  BlobTier tier(store);
  const Home home = tier.create("a", 100, MemoryTag::Param);
  std::vector<std::byte> bytes(100);
  store.fail_read(0);
  EXPECT_THROW(tier.read(home, 0, bytes, IoUrgency::Demand).wait(), IoError);
}

TEST(TierKind, HasNames) {
  EXPECT_EQ(name_of(TierKind::Device), "device");
  EXPECT_EQ(name_of(TierKind::Host), "host");
  EXPECT_EQ(name_of(TierKind::Nvme), "nvme");
}

}  // namespace
}  // namespace strata::offload
