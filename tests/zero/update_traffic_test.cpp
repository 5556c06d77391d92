// What an update moves on each site, counted; and that no site costs the drive more than another.
#include <gtest/gtest.h>

#include "support/toy_engine.h"

namespace strata::zero {
namespace {

using offload::TierKind;
using test::ToyEngine;
using test::ToyOptions;
using test::ToySites;

// Over the link in one step beside gathers and gradients, device-tier pages included.
struct Moved {
  std::uint64_t to_device = 0;
  std::uint64_t to_host = 0;
};

Moved moved_by_update(const ToyOptions& options) {
  ToyEngine engine(options);
  const offload::LinkStats before = engine.device_tier.stats();
  (void)engine.step();
  const offload::LinkStats after = engine.device_tier.stats();
  std::uint64_t gathered = 0, sent = 0;
  const auto counts = count_contributions(engine.visits, engine.groups.size());
  for (std::size_t g = 0; g < engine.groups.size(); ++g) {
    gathered += engine.groups[g].gathers() * engine.groups[g].full_bytes();
    sent += counts[g] * engine.groups[g].full_bytes();
  }
  if (options.param_home == TierKind::Device) gathered = 0;
  if (options.grad_home == TierKind::Device) sent = 0;
  return {engine.counters.to_device - gathered + after.bytes_written - before.bytes_written,
          engine.counters.to_host - sent + after.bytes_read - before.bytes_read};
}

// Elements of the toy, with and without padding.
struct Elements {
  std::uint64_t all = 0;
  std::uint64_t used = 0;
};
Elements elements_of(const ToyOptions& options) {
  Elements elements;
  const ToyEngine engine(options);
  for (const FlatLayout& layout : engine.compute.layouts()) {
    elements.all += layout.numel();
    elements.used += layout.param_numel();
  }
  return elements;
}

// bf16 with fp32 gradients (three micro-batches) and 12 bytes of states.
ToyOptions bf16(TierKind param, TierKind states, TierKind grad, ToySites sites) {
  return {.param_home = param,
          .state_home = states,
          .grad_home = grad,
          .dtype = DType::BF16,
          .micro_batches = 3,
          .sites = sites};
}

TEST(UpdateTraffic, AStreamedUpdateMovesStatesEachWayAGradientInAndAWeightOut) {
  for (const TierKind states : {TierKind::Host, TierKind::Nvme}) {
    const ToyOptions options = bf16(TierKind::Host, states, TierKind::Host, ToySites::Device);
    const Elements elements = elements_of(options);
    const Moved moved = moved_by_update(options);
    EXPECT_EQ(moved.to_device, elements.all * (12 + 4));
    EXPECT_EQ(moved.to_host, elements.all * 12 + elements.used * 2);
  }
}

TEST(UpdateTraffic, AStreamedUpdateLeavesWeightsAndGradientsOnTheDevice) {
  const ToyOptions options = bf16(TierKind::Device, TierKind::Host, TierKind::Device, ToySites::Device);
  const Elements elements = elements_of(options);
  const Moved moved = moved_by_update(options);
  EXPECT_EQ(moved.to_device, elements.all * 12);
  EXPECT_EQ(moved.to_host, elements.all * 12);
}

TEST(UpdateTraffic, Fp32WeightsAreTheMasterAndGoBothWays) {
  ToyOptions options = bf16(TierKind::Host, TierKind::Host, TierKind::Host, ToySites::Device);
  options.dtype = DType::F32;
  const Elements elements = elements_of(options);
  const Moved moved = moved_by_update(options);
  EXPECT_EQ(moved.to_device, elements.all * (8 + 4 + 4));
  EXPECT_EQ(moved.to_host, elements.all * (8 + 4));
}

TEST(UpdateTraffic, AnUpdateOfResidentStatesMovesAGradientInAndAWeightOut) {
  const ToyOptions options = bf16(TierKind::Host, TierKind::Device, TierKind::Host, ToySites::AsHomes);
  const Elements elements = elements_of(options);
  const Moved moved = moved_by_update(options);
  EXPECT_EQ(moved.to_device, elements.all * 4);
  EXPECT_EQ(moved.to_host, elements.used * 2);
}

TEST(UpdateTraffic, AnUpdateOnTheHostMovesNothingUnlessItIsAtHomeOnTheDevice) {
  const Moved none = moved_by_update(bf16(TierKind::Host, TierKind::Nvme, TierKind::Host, ToySites::Host));
  EXPECT_EQ(none.to_device + none.to_host, 0U);
  const ToyOptions options = bf16(TierKind::Host, TierKind::Device, TierKind::Host, ToySites::Host);
  const Elements elements = elements_of(options);
  const Moved states = moved_by_update(options);
  EXPECT_EQ(states.to_device, elements.all * 12);
  EXPECT_EQ(states.to_host, elements.all * 12);
}

TEST(UpdateTraffic, MixedUnitsMoveWhatTheUnitsOfEachSiteDo) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    ToyOptions options = bf16(TierKind::Host, TierKind::Host, TierKind::Host, ToySites::Mixed);
    options.device.seed = seed;
    const ToyEngine engine(options);
    std::uint64_t streamed = 0, all = 0;
    for (const UpdateShards& update : engine.updates) {
      const UpdateWork work = update_work(engine.store, update);
      for (std::size_t u = 0; u < work.units.size(); ++u) {
        all += work.units[u];
        if (update.sites[u] == UpdateSite::Device) streamed += work.units[u];
      }
    }
    ASSERT_GT(streamed, 0U);
    ASSERT_LT(streamed, all);
    EXPECT_EQ(moved_by_update(options).to_device, streamed * (12 + 4));
  }
}

// One visit: the page that an update has written serves the next forward, whichever processor wrote it.
TEST(UpdateTraffic, TheDriveMovesTheSameBytesWhereverUpdatesRun) {
  const auto moved = [](ToySites sites, DType dtype, UpdateTime time) {
    ToyOptions options{.param_home = TierKind::Nvme,
                       .state_home = TierKind::Nvme,
                       .dtype = dtype,
                       .blocks = 12,
                       .head = test::ToyCompute::Head::Own,
                       .slots = 12,
                       .look_ahead_pages = 1,
                       .update_time = time,
                       .sites = sites};
    ToyEngine engine(options);
    (void)engine.step();
    const auto settled = [&] {
      engine.settle();
      engine.store.drain();
      return engine.nvme_tier.stats();
    };
    const offload::LinkStats before = settled();
    for (int i = 0; i < 5; ++i) (void)engine.step();
    const offload::LinkStats after = settled();
    return std::pair{after.bytes_read - before.bytes_read, after.bytes_written - before.bytes_written};
  };
  for (const DType dtype : {DType::BF16, DType::F32}) {
    for (const UpdateTime time : {UpdateTime::AfterBackward, UpdateTime::UnderForward}) {
      const auto host = moved(ToySites::Host, dtype, time);
      for (const ToySites sites : {ToySites::Device, ToySites::Mixed}) {
        SCOPED_TRACE(std::string(name_of(dtype)) + " " + std::to_string(static_cast<int>(time)) + " " +
                     std::to_string(static_cast<int>(sites)));
        const auto other = moved(sites, dtype, time);
        // Which pages stay depends on the threads, and the chunks in flight hold some: three per group and step.
        const std::uint64_t slack = std::uint64_t{5} * 14 * 3 * kPageBytes;
        EXPECT_LE(other.first, host.first + slack);
        EXPECT_LE(other.second, host.second + slack);
      }
    }
  }
}

}  // namespace
}  // namespace strata::zero
