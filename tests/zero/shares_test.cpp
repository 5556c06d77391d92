// Training with classes of tensors split between host memory and the drive.
#include <gtest/gtest.h>

#include "support/toy_engine.h"
#include "support/watchdog.h"

namespace strata::zero {
namespace {

using offload::TierKind;
using test::ToyEngine;
using test::ToyOptions;

TEST(Shares, TrainTheSameBitsAsEverythingInMemory) {
  std::uint64_t seed = 1;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const std::size_t micro_batches : {1, 3}) {
      ToyEngine whole({.dtype = dtype, .micro_batches = micro_batches});
      std::vector<double> losses;
      for (int i = 0; i < 3; ++i) losses.push_back(whole.step().loss_sum);
      const auto expected = whole.snapshot();
      for (const double share : {0.0, 0.1, 0.4, 0.5, 0.77, 1.0}) {
        // Slots of one block, where a share ends between pieces, and of three, where it cuts one.
        for (const std::size_t slot_blocks : {1, 3}) {
          for (const auto mode : {HostDeviceOptions::Mode::Normal, HostDeviceOptions::Mode::Adversarial}) {
            const ToyOptions options{.param_home = TierKind::Nvme,
                                     .state_home = TierKind::Nvme,
                                     .dtype = dtype,
                                     .micro_batches = micro_batches,
                                     .param_host_share = 1 - share,
                                     .state_host_share = share,
                                     .slots = 7,
                                     .slot_bytes = slot_blocks * kPageBytes,
                                     .look_ahead_pages = 2,
                                     .device = {.mode = mode, .seed = seed++}};
            const std::string what = std::string(name_of(dtype)) + ", share " + std::to_string(share) + ", slots of " +
                                     std::to_string(slot_blocks) + " blocks, seed " + std::to_string(seed - 1);
            SCOPED_TRACE(what);
            const test::Watchdog watchdog(what);
            ToyEngine engine(options);
            for (const double loss : losses) EXPECT_EQ(engine.step().loss_sum, loss);
            EXPECT_EQ(engine.store.stats().off_schedule, 0U);
            const auto actual = engine.snapshot();
            ASSERT_EQ(actual.size(), expected.size());
            for (const auto& [name, bytes] : expected) EXPECT_TRUE(actual.at(name) == bytes) << name << " differs";
          }
        }
      }
    }
  }
}

TEST(Shares, AShareOfTheStatesIsTheShareOfTheTrafficAndOfTheMemory) {
  std::uint64_t states = 0;
  for (const double share : {0.0, 0.4, 1.0}) {
    SCOPED_TRACE(share);
    ToyEngine engine(
        {.state_home = TierKind::Nvme, .state_host_share = share, .slots = 5, .slot_bytes = 3 * kPageBytes});
    states = 0;
    for (const UpdateShards& update : engine.updates) {
      for (const offload::ShardId id : update.states) states += engine.store.spec(id).numel * sizeof(float);
    }
    const double in_memory = static_cast<double>(engine.host.used(MemoryTag::OptimState));
    EXPECT_NEAR(in_memory, share * static_cast<double>(states), kPageBytes);
    (void)engine.step();
    const std::uint64_t before = engine.nvme_tier.stats().bytes_read;
    (void)engine.step();
    const double read = static_cast<double>(engine.nvme_tier.stats().bytes_read - before);
    EXPECT_LE(read, (1 - share) * static_cast<double>(states) + kPageBytes);
    // What the five slots may have kept.
    EXPECT_GE(read, (1 - share) * static_cast<double>(states) - 5 * 3 * kPageBytes);
  }
}

}  // namespace
}  // namespace strata::zero
