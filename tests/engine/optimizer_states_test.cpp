// Every optimizer and every encoding of its states through the engine: placement, checkpoints, conversion.
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "engine/engine.h"
#include "engine/tiny_run.h"
#include "support/temp_dir.h"

namespace strata::engine {
namespace {

using offload::TierKind;
using test::tiny_parameter_bits;
using test::train_tiny;

constexpr OptimizerConfig kExact{OptimizerKind::AdamW, MasterEncoding::Fp32, MomentEncoding::Fp32};
constexpr OptimizerConfig kRemainder{OptimizerKind::AdamW, MasterEncoding::Remainder, MomentEncoding::Fp32};
constexpr OptimizerConfig kNarrow{OptimizerKind::AdamW, MasterEncoding::Remainder, MomentEncoding::Block8};
constexpr OptimizerConfig kConfigs[] = {
    kExact,
    kRemainder,
    kNarrow,
    {OptimizerKind::AdamW, MasterEncoding::Fp32, MomentEncoding::Bf16},
    {OptimizerKind::AdamW, MasterEncoding::Remainder, MomentEncoding::Bf16},
    {OptimizerKind::AdamW, MasterEncoding::Fp32, MomentEncoding::Block8},
    {OptimizerKind::Adam, MasterEncoding::Fp32, MomentEncoding::Fp32},
    {OptimizerKind::Lion, MasterEncoding::Remainder, MomentEncoding::Block8},
    {OptimizerKind::Momentum, MasterEncoding::Remainder, MomentEncoding::Bf16},
    {OptimizerKind::Nesterov, MasterEncoding::Fp32, MomentEncoding::Fp32},
    {OptimizerKind::Sgd, MasterEncoding::Remainder, MomentEncoding::Fp32},
};

std::string text(const OptimizerConfig& config) {
  return std::string(name_of(config.kind)) + " " + std::string(name_of(config.master)) + " " +
         std::string(name_of(config.moments));
}

class OptimizerStatesTest : public testing::Test {
 protected:
  OptimizerStatesTest() { test::write_tiny_model(folder_.path() / "model"); }

  EngineConfig config(const OptimizerConfig& optimizer, TierKind home = TierKind::Device) const {
    EngineConfig config = test::tiny_engine_on(home, folder_.path() / "model", folder_.path());
    config.optimizer = optimizer;
    return config;
  }
  std::vector<float> all_parameters(Engine& engine) const {
    std::vector<float> all;
    for (const std::string& name : test::tiny_parameter_names(engine)) {
      const std::vector<float> values = engine.parameter(name);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  std::filesystem::path saved(Engine& engine, const std::string& name) const {
    const std::filesystem::path folder = folder_.path() / name;
    std::filesystem::create_directories(folder);
    engine.save_states(folder);
    return folder;
  }

  test::TempDir folder_;
};

TEST_F(OptimizerStatesTest, TrainToTheSameBitsOnEveryTierAndOverlappedOrNot) {
  for (const OptimizerConfig& optimizer : kConfigs) {
    SCOPED_TRACE(text(optimizer));
    const std::unique_ptr<Engine> in_memory = Engine::create(config(optimizer));
    EngineConfig serial = config(optimizer);
    serial.overlap_update = false;
    const std::unique_ptr<Engine> one_after_the_other = Engine::create(serial);
    const std::unique_ptr<Engine> on_drive = Engine::create(config(optimizer, TierKind::Nvme));
    EngineConfig shared = config(optimizer, TierKind::Nvme);
    shared.optimizer_host_share = 0.4;
    const std::unique_ptr<Engine> split = Engine::create(shared);
    const double first = train_tiny(*in_memory, 4).front().loss;
    const double loss = train_tiny(*in_memory, 1).front().loss;
    EXPECT_NE(loss, first);
    const std::vector<std::uint32_t> bits = tiny_parameter_bits(*in_memory);
    for (Engine* engine : {one_after_the_other.get(), on_drive.get(), split.get()}) {
      train_tiny(*engine, 4);
      EXPECT_EQ(train_tiny(*engine, 1).front().loss, loss);
      EXPECT_TRUE(tiny_parameter_bits(*engine) == bits);
    }
  }
}

// Weights of every type; with one micro-batch gradients have that type too, with two they are fp32.
TEST_F(OptimizerStatesTest, TrainWeightsAndGradientsOfEveryTypeToTheSameBitsOnEveryTier) {
  for (const OptimizerConfig& optimizer : kConfigs) {
    for (const DType type : {DType::F32, DType::BF16, DType::F16}) {
      if (optimizer.master == MasterEncoding::Remainder && type != DType::BF16) continue;
      for (const std::int64_t micro_batches : {1, 2}) {
        SCOPED_TRACE(text(optimizer) + " " + std::string(name_of(type)) + ", micro-batches " +
                     std::to_string(micro_batches));
        const auto trained = [&](TierKind home) {
          EngineConfig one = config(optimizer, home);
          one.param_type = type;
          one.micro_batches = micro_batches;
          if (type == DType::F16) one.loss_scale = LossScaleConfig{.constant = 1024};
          std::unique_ptr<Engine> engine = Engine::create(one);
          EXPECT_EQ(engine->memory_plan().grad_type, micro_batches == 1 ? type : DType::F32);
          const std::vector<StepSummary> steps = train_tiny(*engine, 3);
          for (const StepSummary& step : steps) EXPECT_FALSE(step.skipped);
          EXPECT_NE(steps.back().loss, steps.front().loss);
          return engine;
        };
        const std::unique_ptr<Engine> in_memory = trained(TierKind::Device);
        EXPECT_TRUE(tiny_parameter_bits(*trained(TierKind::Host)) == tiny_parameter_bits(*in_memory));
        EXPECT_TRUE(tiny_parameter_bits(*trained(TierKind::Nvme)) == tiny_parameter_bits(*in_memory));
      }
    }
  }
}

TEST_F(OptimizerStatesTest, TrainToTheSameBitsOnEveryUpdateSite) {
  std::uint64_t seed = 0;
  for (const OptimizerConfig& optimizer : kConfigs) {
    const std::unique_ptr<Engine> in_memory = Engine::create(config(optimizer));
    train_tiny(*in_memory, 3);
    const std::vector<std::uint32_t> bits = tiny_parameter_bits(*in_memory);
    for (const TierKind home : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
      for (const UpdateSite site : {UpdateSite::Host, UpdateSite::Streamed}) {
        EngineConfig other = config(optimizer, home);
        other.update_site = site;
        other.optimizer_device_share = 0.3;  // one group, where that is not the home of all
        other.adversarial_streams = true;
        other.overlap_update = ++seed % 3 != 0;
        SCOPED_TRACE(text(optimizer) + " on " + std::string(name_of(home)) + " " +
                     std::to_string(static_cast<int>(site)));
        const std::unique_ptr<Engine> engine = Engine::create(other);
        train_tiny(*engine, 3);
        EXPECT_TRUE(tiny_parameter_bits(*engine) == bits);
      }
    }
  }
}

// fp32 parameters are their own master, and sgd has no moments.
TEST_F(OptimizerStatesTest, TrainsWithoutAnyState) {
  std::vector<std::uint32_t> first;
  using enum UpdateSite;
  for (const auto& [home, site] : {std::pair{TierKind::Device, Auto}, std::pair{TierKind::Host, Auto},
                                   std::pair{TierKind::Nvme, Auto}, std::pair{TierKind::Nvme, Streamed}}) {
    SCOPED_TRACE(offload::name_of(home));
    EngineConfig stateless = config({OptimizerKind::Sgd, {}, {}}, home);
    stateless.param_type = DType::F32;
    stateless.update_site = site;
    ASSERT_FALSE(Engine::plan(stateless).grad_slots.empty()) << "then nothing could be learnt";
    const std::unique_ptr<Engine> engine = Engine::create(stateless);
    const std::vector<std::uint32_t> before = tiny_parameter_bits(*engine);
    train_tiny(*engine, 3);
    const std::vector<std::uint32_t> after = tiny_parameter_bits(*engine);
    EXPECT_FALSE(after == before);
    if (first.empty()) first = after;
    EXPECT_TRUE(after == first);
  }
}

TEST_F(OptimizerStatesTest, ARemainderIsTheMasterBitForBit) {
  const std::unique_ptr<Engine> exact = Engine::create(config(kExact));
  const std::unique_ptr<Engine> remainder = Engine::create(config(kRemainder, TierKind::Nvme));
  train_tiny(*exact, 5);
  train_tiny(*remainder, 5);
  EXPECT_TRUE(tiny_parameter_bits(*exact) == tiny_parameter_bits(*remainder));
}

TEST_F(OptimizerStatesTest, AResumedRunContinuesWithTheSameBits) {
  for (const OptimizerConfig& optimizer : kConfigs) {
    SCOPED_TRACE(text(optimizer));
    const std::unique_ptr<Engine> uninterrupted = Engine::create(config(optimizer, TierKind::Nvme));
    train_tiny(*uninterrupted, 3);
    const std::filesystem::path folder = saved(*uninterrupted, text(optimizer));
    const RunState state = uninterrupted->state();
    train_tiny(*uninterrupted, 3);

    EngineConfig other = config(optimizer, TierKind::Host);
    other.random_weights = true;
    const std::unique_ptr<Engine> resumed = Engine::create(other);
    train_tiny(*resumed, 1);  // so that nothing is right by chance
    resumed->load_states(folder, state);
    train_tiny(*resumed, 3);
    EXPECT_TRUE(tiny_parameter_bits(*resumed) == tiny_parameter_bits(*uninterrupted));
  }
}

// From each encoding of AdamW to each: the parameters arrive bit for bit, and training goes on much the same.
TEST_F(OptimizerStatesTest, ResumeWithAnotherEncoding) {
  std::vector<OptimizerConfig> encodings;
  for (const OptimizerConfig& optimizer : kConfigs) {
    if (optimizer.kind == OptimizerKind::AdamW) encodings.push_back(optimizer);
  }
  for (const OptimizerConfig& before : encodings) {
    const std::unique_ptr<Engine> source = Engine::create(config(before));
    train_tiny(*source, 4);
    const std::filesystem::path folder = saved(*source, text(before));
    const RunState state = source->state();
    const std::vector<std::uint32_t> bits = tiny_parameter_bits(*source);
    const double next_loss = train_tiny(*source, 2).back().loss;
    for (const OptimizerConfig& after : encodings) {
      SCOPED_TRACE(text(before) + " -> " + text(after));
      const std::unique_ptr<Engine> resumed = Engine::create(config(after, TierKind::Nvme));
      resumed->load_states(folder, state);
      EXPECT_TRUE(tiny_parameter_bits(*resumed) == bits);
      EXPECT_NEAR(train_tiny(*resumed, 2).back().loss, next_loss, 0.02 * next_loss);
    }
  }
}

TEST_F(OptimizerStatesTest, AnotherOptimizerCannotTakeOverWhatItDoesNotKnow) {
  const std::unique_ptr<Engine> sgd = Engine::create(config({OptimizerKind::Sgd, {}, {}}));
  train_tiny(*sgd, 1);
  const std::filesystem::path folder = saved(*sgd, "sgd");
  const std::unique_ptr<Engine> adamw = Engine::create(config(kExact));
  EXPECT_THROW(adamw->load_states(folder, sgd->state()), DataError);
}

TEST_F(OptimizerStatesTest, NarrowStatesTakeAThirdOfTheDrive) {
  const PerTier exact = Engine::plan(config(kExact, TierKind::Nvme)).need;
  const PerTier narrow = Engine::plan(config(kNarrow, TierKind::Nvme)).need;
  EXPECT_NEAR(static_cast<double>(narrow[2]) / static_cast<double>(exact[2]), 6.03 / 14,
              0.015);  // small shards, rounded up
}

// Codes and scales aren't whole pages of memory, and their homes are.
TEST_F(OptimizerStatesTest, NarrowStatesTakeWhatThePlanSaysOnEveryTier) {
  for (const TierKind home : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
    for (const double share : {0.0, 0.3, 1.0}) {
      SCOPED_TRACE(std::string(offload::name_of(home)) + ", " + std::to_string(share) + " in host memory");
      EngineConfig least = config(kNarrow, home);
      least.optimizer_host_share = share;
      const MemoryPlan plan = Engine::plan(least);
      least.device_budget = plan.need[0];
      least.host_budget = plan.need[1];
      least.nvme_budget = plan.need[2];
      if (plan.need[2] == 0) least.nvme_paths.clear();
      std::unique_ptr<Engine> engine;
      ASSERT_NO_THROW(engine = Engine::create(least));
      EXPECT_EQ(engine->peak_bytes()[1], plan.need[1]);
      EXPECT_EQ(engine->peak_bytes()[2], plan.need[2]);
    }
  }
}

TEST_F(OptimizerStatesTest, TheNarrowestOnesTrainInTheSmallestPool) {
  EngineConfig least = config(kNarrow, TierKind::Nvme);
  const MemoryPlan ample = Engine::plan(least);
  least.host_budget = ample.need[1] - (ample.slots - ample.pins_at_once) * ample.slot_bytes;
  const std::unique_ptr<Engine> squeezed = Engine::create(least);
  ASSERT_EQ(squeezed->memory_plan().slots, 7U);  // parameter, gradient, remainder, codes and scales of two moments
  const std::unique_ptr<Engine> in_memory = Engine::create(config(kNarrow));
  train_tiny(*squeezed, 3);
  train_tiny(*in_memory, 3);
  EXPECT_TRUE(tiny_parameter_bits(*squeezed) == tiny_parameter_bits(*in_memory));
}

}  // namespace
}  // namespace strata::engine
