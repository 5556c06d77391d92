#include "offload/shares.h"

#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <random>

#include "core/bytes.h"
#include "core/error.h"
#include "support/store_rig.h"
#include "support/test_seed.h"

namespace strata::offload {
namespace {

ShardSpec state(std::uint64_t numel, DType dtype = DType::F32) {
  return {"state", ShardKind::OptimState, dtype, numel, TierKind::Nvme};
}

TEST(HostNumels, FortyPercentIsFortyPercentToTheBlock) {
  const std::vector<ShardSpec> shards = {state(10240), state(10240), state(10240)};  // ten blocks each
  EXPECT_EQ(host_numels(shards, 0.4), (std::vector<std::uint64_t>{4096, 4096, 4096}));
  EXPECT_EQ(host_numels(shards, 0.0), (std::vector<std::uint64_t>{0, 0, 0}));
  EXPECT_EQ(host_numels(shards, 1.0), (std::vector<std::uint64_t>{10240, 10240, 10240}));
}

TEST(HostNumels, WhatRoundingTakesFromOneShardTheNextOneGets) {
  const std::vector<ShardSpec> shards = {state(3072), state(3072), state(3072), state(3072)};  // three blocks each
  // 1.5, 3, 4.5, 6 of 12 blocks.
  EXPECT_EQ(host_numels(shards, 0.5), (std::vector<std::uint64_t>{1024, 2048, 1024, 2048}));
}

TEST(HostNumels, ATailMayBeCutOffWhole) {
  EXPECT_EQ(host_numels(std::vector{state(1500)}, 0.95), (std::vector<std::uint64_t>{1500}));
  EXPECT_EQ(host_numels(std::vector{state(100)}, 0.2), (std::vector<std::uint64_t>{0}));
}

TEST(HostNumels, EveryPrefixIsWithinHalfABlockOfItsShare) {
  const std::uint64_t seed = test::test_seed(42);
  std::cout << "seed " << seed << '\n';
  std::mt19937_64 random(seed);
  const auto pick = [&](std::uint64_t most) { return std::uniform_int_distribution<std::uint64_t>(1, most)(random); };
  for (int round = 0; round < 200; ++round) {
    std::vector<ShardSpec> shards;
    for (std::uint64_t n = pick(30); n > 0; --n) {
      shards.push_back(
          state(pick(pick(2) == 1 ? 3000 : 3000000), std::array{DType::F32, DType::BF16, DType::U8}[pick(3) - 1]));
    }
    const double share = static_cast<double>(pick(1000)) / 1000;
    const std::vector<std::uint64_t> numels = host_numels(shards, share);
    double total = 0;
    double host = 0;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const std::uint64_t element = bytes_of(shards[i].dtype);
      EXPECT_TRUE(numels[i] == shards[i].numel ||
                  (numels[i] * element % kPageBytes == 0 && numels[i] < shards[i].numel));
      total += static_cast<double>(shards[i].numel * element);
      host += static_cast<double>(numels[i] * element);
      // Half a block, and what a rounded byte and element make.
      ASSERT_LE(std::abs(host - share * total), kPageBytes / 2 + 5.0) << "round " << round << ", shard " << i;
    }
  }
}

TEST(HostNumels, AGrainCoarserThanABlockIsRespected) {
  const std::vector<std::uint64_t> numels = host_numels(std::vector{state(1000000)}, 0.4, 65536);
  EXPECT_EQ(numels[0] % 65536, 0U);
  EXPECT_NEAR(static_cast<double>(numels[0]), 400000.0, 65536 / 2.0);
}

TEST(SharedShards, HostMemoryAndTheDriveGetTheirExactBytes) {
  test::StoreRig rig({.slots = 8, .slot_bytes = 3 * kPageBytes});
  const std::uint64_t before = rig.host.used(MemoryTag::OptimState);
  ShardSpec spec = state(10240);
  spec.host_numel = 4096;
  const ShardId shard = rig.store.add(spec);
  EXPECT_EQ(rig.host.used(MemoryTag::OptimState) - before, 4 * kPageBytes);
  EXPECT_EQ(rig.memory->contents({0}).size(), 6 * kPageBytes);
  // Slots of three blocks: 0-2, 3 | 4-5, 6-8, 9; the first two are in host memory.
  ASSERT_EQ(rig.store.pieces(shard), 5U);
  for (std::uint32_t p = 0; p < 5; ++p) EXPECT_EQ(rig.store.paged({shard, p}), p >= 2) << p;
  std::vector<std::byte> bytes(10240 * sizeof(float));
  test::stamp(bytes, 3);
  test::write_shard(rig.store, shard, bytes);
  for (std::uint32_t p = 0; p < 5; ++p) EXPECT_EQ(rig.store.acquire({shard, p}, Access::Read).wait().size() > 0, true);
  EXPECT_TRUE(test::read_shard(rig.store, shard) == bytes);
}

TEST(SharedShards, TheDrivesPartSurvivesEviction) {
  test::StoreRig rig({.slots = ShardStore::kMinSlots, .slot_bytes = 3 * kPageBytes});
  ShardSpec spec = state(50000, DType::BF16);
  spec.host_numel = 14336;
  const ShardId shard = rig.store.add(spec);
  std::vector<std::byte> bytes(50000 * 2);
  test::stamp(bytes, 9);
  test::write_shard(rig.store, shard, bytes);
  EXPECT_TRUE(test::read_shard(rig.store, shard) == bytes);
  EXPECT_GT(rig.bytes_written(), 0U);
  EXPECT_LE(rig.bytes_read(), (50000 - 14336) * 2U);
}

TEST(SharedShards, RefusesSharesThatHaveNoWholeBlocksOrNoSingleHomeOnTheDevice) {
  test::StoreRig rig;
  ShardSpec spec = state(10240);
  spec.host_numel = 1000;
  EXPECT_THROW((void)rig.store.add(spec), ContractViolation);
  spec.host_numel = 20480;
  EXPECT_THROW((void)rig.store.add(spec), ContractViolation);
  spec.host_numel = 4096;
  spec.home = TierKind::Device;
  EXPECT_THROW((void)rig.store.add(spec), ContractViolation);
}

}  // namespace
}  // namespace strata::offload
