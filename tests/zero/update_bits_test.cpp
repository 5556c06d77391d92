// Every optimizer and every encoding of its states, updated on every site: the same bits.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "cpu_adam/cpu_optimizer.h"
#include "support/store_rig.h"
#include "support/test_seed.h"
#include "support/watchdog.h"
#include "zero/optimizer_pipeline.h"

namespace strata::zero {
namespace {

using offload::Access;
using offload::ShardKind;
using offload::TierKind;
using Bytes = std::vector<std::byte>;

struct Case {
  OptimizerConfig optimizer;
  DType param = DType::BF16;
  DType grad = DType::BF16;
};

std::string text(const Case& c) {
  return std::string(name_of(c.optimizer.kind)) + " " + std::string(name_of(c.optimizer.master)) + " " +
         std::string(name_of(c.optimizer.moments)) + " " + std::string(name_of(c.param)) + " " +
         std::string(name_of(c.grad));
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const OptimizerKind kind : {OptimizerKind::AdamW, OptimizerKind::Adam, OptimizerKind::Lion,
                                   OptimizerKind::Momentum, OptimizerKind::Nesterov, OptimizerKind::Sgd}) {
    for (const MomentEncoding moments : {MomentEncoding::Fp32, MomentEncoding::Bf16, MomentEncoding::Block8}) {
      if (kind == OptimizerKind::Sgd && moments != MomentEncoding::Fp32) continue;  // it has none
      all.push_back({{kind, MasterEncoding::Fp32, moments}, DType::BF16, DType::BF16});
      all.push_back({{kind, MasterEncoding::Remainder, moments}, DType::BF16, DType::F32});
      all.push_back({{kind, MasterEncoding::Fp32, moments}, DType::F32, DType::F32});
    }
  }
  return all;
}

enum class Sites : std::uint8_t { Host, Device, Mixed };

struct Drive {
  TierKind param = TierKind::Host;
  TierKind grad = TierKind::Host;
  TierKind states = TierKind::Host;
  Sites sites = Sites::Host;
  HostDeviceOptions device = {};
};

std::string text(const Drive& drive) {
  return std::string(name_of(drive.param)) + "/" + std::string(name_of(drive.grad)) + "/" +
         std::string(name_of(drive.states)) + " sites " + std::to_string(static_cast<int>(drive.sites)) + " seed " +
         std::to_string(drive.device.seed);
}

// Two groups with gaps between parameters and at the end, of some pages each.
const std::vector<FlatLayout>& layouts() {
  static const std::vector<FlatLayout> all{
      FlatLayout({"a", {{"w", {40, 77}}, {"norm", {33}, false}, {"v", {1500}}}}, 1),
      FlatLayout({"b", {{"w", {1100}}, {"bias", {3}, false}}}, 1)};
  return all;
}

// As float, or as the upper half of one, zero in the padding.
Bytes values(const FlatLayout& layout, DType dtype, std::mt19937_64& random) {
  Bytes bytes(layout.numel() * bytes_of(dtype));
  for (const ParamSlot& slot : layout.params()) {
    for (std::size_t i = slot.offset; i < slot.offset + slot.numel; ++i) {
      const float value = std::uniform_real_distribution<float>(-0.5F, 0.5F)(random);
      std::uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof(bits));
      if (dtype == DType::F32) {
        std::memcpy(bytes.data() + 4 * i, &bits, 4);
      } else {
        const auto upper = static_cast<std::uint16_t>(bits >> 16);
        std::memcpy(bytes.data() + 2 * i, &upper, 2);
      }
    }
  }
  return bytes;
}

Bytes widened(const Bytes& bf16) {
  Bytes wide(2 * bf16.size());
  for (std::size_t i = 0; i < bf16.size() / 2; ++i) std::memcpy(wide.data() + 4 * i + 2, bf16.data() + 2 * i, 2);
  return wide;
}

// All shards after three updates.
std::vector<Bytes> train(const Case& c, const Drive& drive, std::uint64_t seed) {
  test::StoreRig rig({.slots = 10, .look_ahead_bytes = 2 * kPageBytes, .device = drive.device});
  const auto host_pool = make_thread_pool(1);
  const auto device_pool = make_thread_pool(1);
  cpu_adam::CpuOptimizer host(*host_pool, c.optimizer);
  cpu_adam::CpuOptimizer device(*device_pool, c.optimizer);
  const std::vector<StateSpec> states = host.states(c.param);
  std::vector<UpdateShards> updates;
  std::vector<const FlatLayout*> pointers;
  for (const FlatLayout& layout : layouts()) {
    pointers.push_back(&layout);
    UpdateShards& update = updates.emplace_back();
    update.param = rig.add(layout.numel(), drive.param, c.param, ShardKind::Param);
    update.param_access = host.reads_param(c.param) ? Access::ReadWrite : Access::Write;
    update.grad = rig.add(layout.numel(), drive.grad, c.grad, ShardKind::Grad);
    for (const StateSpec& state : states) {
      update.states.push_back(rig.add(state.values_for(layout.numel()), drive.states, state.dtype));
      update.elements_per_value.push_back(state.elements_per_value);
    }
  }
  std::mt19937_64 random(seed);  // values and, last of all, sites: the same values whatever the sites
  for (std::size_t g = 0; g < updates.size(); ++g) {
    const Bytes param = values(layouts()[g], c.param, random);
    test::write_shard(rig.store, updates[g].param, param);
    for (std::size_t s = 0; s < states.size(); ++s) {
      const std::size_t bytes = states[s].values_for(layouts()[g].numel()) * bytes_of(states[s].dtype);
      test::write_shard(rig.store, updates[g].states[s], states[s].name == "master" ? widened(param) : Bytes(bytes));
    }
  }
  std::vector<std::vector<Bytes>> gradients(3);
  for (std::vector<Bytes>& step : gradients) {
    for (const FlatLayout& layout : layouts()) step.push_back(values(layout, c.grad, random));
  }
  std::uint64_t staging = 0;
  for (UpdateShards& update : updates) {
    staging = std::max(staging, update_staging_bytes(update_parts(rig.store, update), kPageBytes));
    for (std::uint32_t unit = 0; unit < rig.store.pieces(update.param); ++unit) {
      const bool device_unit = drive.sites == Sites::Device || (drive.sites == Sites::Mixed && random() % 2 == 0);
      update.sites.push_back(device_unit ? UpdateSite::Device : UpdateSite::Host);
    }
  }
  std::vector<Buffer> sets;
  for (std::size_t i = 0; staging > 0 && i < kUpdateStagingSets; ++i) {
    sets.push_back(rig.device.allocate(staging, MemoryTag::Staging));
  }
  LinkCounters counters;
  BusyTimes busy;
  const auto in = rig.device.create_stream("in");
  const auto compute = rig.device.create_stream("update");
  const auto out = rig.device.create_stream("out");
  DeviceUpdates on_device(device, sets, {*in, *compute, *out}, counters, busy);
  ThreadExecutor thread("updates");
  OptimizerPipeline pipeline(pointers, updates, rig.store, host, &on_device, thread, busy);
  for (std::size_t step = 0; step < gradients.size(); ++step) {
    for (std::size_t g = 0; g < updates.size(); ++g) test::write_shard(rig.store, updates[g].grad, gradients[step][g]);
    rig.store.drain_uncached();
    pipeline.step({.step = static_cast<std::int64_t>(step) + 1,
                   .learning_rate = 0.01,
                   .weight_decay = 0.1,
                   .grad_scale = 0.3F,
                   .seed = 7});
  }
  EXPECT_GT(busy.take().any, 0);
  std::vector<Bytes> all;
  for (const UpdateShards& update : updates) {
    all.push_back(test::read_shard(rig.store, update.param));
    for (const offload::ShardId state : update.states) all.push_back(test::read_shard(rig.store, state));
  }
  return all;
}

TEST(UpdateBits, OfEveryOptimizerAndEncodingAreTheSameOnEverySite) {
  std::uint64_t seed = test::test_seed(1);
  SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed));
  constexpr TierKind kHomes[] = {TierKind::Device, TierKind::Host, TierKind::Nvme};
  for (const Case& c : cases()) {
    SCOPED_TRACE(text(c));
    for (const TierKind states : kHomes) {
      for (const Sites sites : {Sites::Host, Sites::Device, Sites::Mixed}) {
        if (states == TierKind::Device && sites == Sites::Mixed) continue;  // nothing to choose
        std::mt19937_64 random(++seed);
        const Drive drive{kHomes[random() % 3],
                          kHomes[random() % 2],
                          states,
                          sites,
                          {.mode = HostDeviceOptions::Mode::Adversarial, .seed = random() % 1000}};
        SCOPED_TRACE(text(drive));
        const test::Watchdog watchdog(text(c) + " " + text(drive));
        const std::vector<Bytes> actual = train(c, drive, seed);
        const std::vector<Bytes> expected = train(c, {}, seed);
        ASSERT_EQ(actual.size(), expected.size());
        for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(actual[i] == expected[i]) << "shard " << i;
      }
    }
  }
}

}  // namespace
}  // namespace strata::zero
