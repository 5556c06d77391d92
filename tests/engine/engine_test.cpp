#include "engine/engine.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <limits>
#include <map>

#include "core/error.h"
#include "core/numeric.h"
#include "engine/tiny_run.h"
#include "nvme/device_profile.h"
#include "offload/shard_store.h"
#include "support/small_mount.h"
#include "support/temp_dir.h"

namespace strata::engine {
namespace {

using offload::TierKind;
using test::tiny_parameter_bits;
using test::train_tiny;

struct Homes {
  TierKind param, grad, optimizer;
  std::string text() const {
    return std::string(name_of(param)) + "/" + std::string(name_of(grad)) + "/" + std::string(name_of(optimizer));
  }
};

constexpr Homes kAllDevice{TierKind::Device, TierKind::Device, TierKind::Device};
constexpr Homes kAllHost{TierKind::Host, TierKind::Host, TierKind::Host};
constexpr Homes kAllNvme{TierKind::Nvme, TierKind::Host, TierKind::Nvme};
constexpr Homes kHomes[] = {kAllDevice,
                            kAllHost,
                            kAllNvme,
                            {TierKind::Device, TierKind::Host, TierKind::Nvme},
                            {TierKind::Nvme, TierKind::Device, TierKind::Device},
                            {TierKind::Host, TierKind::Device, TierKind::Nvme},
                            {TierKind::Nvme, TierKind::Host, TierKind::Host},
                            {TierKind::Nvme, TierKind::Nvme, TierKind::Nvme},
                            {TierKind::Host, TierKind::Nvme, TierKind::Device}};

class EngineTest : public testing::Test {
 protected:
  EngineTest() { test::write_tiny_model(model()); }

  std::filesystem::path model() const { return folder_.path() / "model"; }
  std::filesystem::path swap() const { return folder_.path() / "swap"; }

  EngineConfig config(const Homes& homes = kAllDevice) const {
    EngineConfig config = test::tiny_engine(model());
    config.param_home = homes.param;
    config.grad_home = homes.grad;
    config.optimizer_home = homes.optimizer;
    if (homes.param == TierKind::Nvme || homes.grad == TierKind::Nvme || homes.optimizer == TierKind::Nvme) {
      std::filesystem::create_directories(swap());
      config.nvme_paths = {swap()};
      config.nvme_budget = std::uint64_t{64} << 20;
    }
    return config;
  }
  // With budgets that leave nothing over: pages for one update, so that they are evicted all the time.
  static EngineConfig squeezed(EngineConfig config) {
    config.slot_bytes = std::uint64_t{256} << 10;
    const MemoryPlan ample = Engine::plan(config);
    config.host_budget = ample.need[1] - (ample.slots - offload::ShardStore::kMinSlots) * ample.slot_bytes;
    const MemoryPlan least = Engine::plan(config);
    config.device_budget = least.need[0];
    if (!config.nvme_paths.empty()) config.nvme_budget = least.need[2];
    return config;
  }

  test::TempDir folder_;
};

// All homes must give these bits: those of a run whose every byte is on the device.
void expect_equal_bits(const std::vector<EngineConfig>& configs, const std::vector<std::string>& names) {
  std::vector<std::uint32_t> reference;
  std::vector<double> losses;
  for (std::size_t i = 0; i < configs.size(); ++i) {
    SCOPED_TRACE(names[i]);
    const std::unique_ptr<Engine> engine = Engine::create(configs[i]);
    const std::vector<StepSummary> steps = train_tiny(*engine, 3);
    const std::vector<std::uint32_t> bits = tiny_parameter_bits(*engine);
    if (i == 0) {
      reference = bits;
      for (const StepSummary& step : steps) losses.push_back(step.loss);
      ASSERT_NE(losses.front(), losses.back());
      continue;
    }
    EXPECT_TRUE(bits == reference) << "parameters differ from those of " << names[0];
    for (std::size_t s = 0; s < steps.size(); ++s) EXPECT_EQ(steps[s].loss, losses[s]) << "step " << s;
  }
}

TEST_F(EngineTest, TrainsToTheSameBitsWhereverItsStatesLive) {
  std::vector<EngineConfig> configs;
  std::vector<std::string> names;
  for (const Homes& homes : kHomes) {
    configs.push_back(squeezed(config(homes)));
    names.push_back(homes.text());
  }
  expect_equal_bits(configs, names);
}

TEST_F(EngineTest, TrainsToTheSameBitsWhereverUpdatesRun) {
  std::vector<EngineConfig> configs{squeezed(config(kAllDevice))};
  std::vector<std::string> names{kAllDevice.text()};
  for (const Homes& homes : kHomes) {
    for (const UpdateSite site : {UpdateSite::Auto, UpdateSite::Host, UpdateSite::Device, UpdateSite::Streamed}) {
      EngineConfig one = config(homes);
      one.update_site = site;
      one.optimizer_device_share = configs.size() % 2 == 0 ? 0.5 : 0;
      one.delay_update = configs.size() % 3 == 0;
      one.adamw.max_grad_norm = configs.size() % 5 < 2 ? 0 : 1e9;  // clips nothing
      configs.push_back(squeezed(one));
      names.push_back(homes.text() + " site " + std::to_string(static_cast<int>(site)));
    }
  }
  configs.front().adamw.max_grad_norm = 0;
  expect_equal_bits(configs, names);
}

TEST_F(EngineTest, AStreamedUpdateMovesWhatThePlanSaysAndFitsIt) {
  EngineConfig streamed = config(kAllHost);
  streamed.update_site = UpdateSite::Streamed;
  streamed.overlap_update = false;
  const std::unique_ptr<Engine> engine = Engine::create(squeezed(streamed));
  EXPECT_NE(engine->description().find("updates on the device, all states streamed there and back"), std::string::npos)
      << engine->description();
  train_tiny(*engine, 1);
  const StepSummary step = train_tiny(*engine, 1).front();
  const MemoryPlan& plan = engine->memory_plan();
  EXPECT_EQ(plan.updates.streamed_share, 1);
  // Padding of weights that are only written stays at home.
  EXPECT_NEAR(static_cast<double>(step.to_device + step.to_host), static_cast<double>(plan.link_per_step),
              1e-2 * static_cast<double>(plan.link_per_step));
  for (std::size_t t = 0; t < offload::kTiers; ++t) EXPECT_LE(engine->peak_bytes()[t], plan.need[t]) << "tier " << t;
}

TEST_F(EngineTest, OnTheHostAsADeviceMeasuringNeverChoosesToStream) {
  for (const Homes& homes : kHomes) {
    const MemoryPlan plan = Engine::plan(config(homes));
    EXPECT_EQ(plan.updates.streamed_share, 0) << homes.text();
    EXPECT_EQ(plan.updates.device_share, homes.optimizer == TierKind::Device ? 1 : 0) << homes.text();
  }
}

TEST_F(EngineTest, TracesComputeUpdatesAndRequestsAndCountsTheIdeal) {
  Trace trace;
  EngineConfig on_drive = squeezed(config(kAllNvme));
  on_drive.trace = &trace;
  const std::unique_ptr<Engine> engine = Engine::create(on_drive);
  const std::vector<StepSummary> steps = train_tiny(*engine, 2);
  std::map<std::string, int> named;
  std::uint64_t moved = 0;
  for (const Trace::Span& span : trace.spans()) {
    EXPECT_LE(span.begin, span.end);
    ++named[span.name];
    moved += span.bytes;
  }
  EXPECT_EQ(named["forward 0"], 2);  // once a step
  EXPECT_GE(named["backward 3"], 2);
  EXPECT_GE(named["update 0"], 1);  // the second may still run
  EXPECT_GE(moved, steps[0].nvme_read + steps[0].nvme_written + steps[1].nvme_read + steps[1].nvme_written);
  ASSERT_EQ(engine->drives().size(), 1U);
  ASSERT_TRUE(steps[1].ideal_seconds.has_value());
  EXPECT_GT(*steps[1].ideal_seconds, 0);
  EXPECT_FALSE(steps[1].binding_link.empty());
  EXPECT_LE(steps[1].stall_nvme_seconds, steps[1].stall_seconds);
}

TEST_F(EngineTest, TakesTheRatesOfATunedDriveForTheIdeal) {
  const char* const before = std::getenv("STRATA_DRIVE_PROFILES");
  const std::string restored = before == nullptr ? "" : before;
  ASSERT_EQ(::setenv("STRATA_DRIVE_PROFILES", (model() / "drives.json").c_str(), 1), 0);
  const EngineConfig on_drive = squeezed(config(kAllNvme));
  nvme::DeviceProfile slow;
  slow.read_rate = slow.write_rate = slow.mixed_rate = 1e6;  // slower than anything that this test could meet
  ASSERT_TRUE(nvme::save_profile(swap(), slow));
  const std::unique_ptr<Engine> engine = Engine::create(on_drive);
  const StepSummary step = train_tiny(*engine, 2).back();
  before == nullptr ? ::unsetenv("STRATA_DRIVE_PROFILES") : ::setenv("STRATA_DRIVE_PROFILES", restored.c_str(), 1);
  ASSERT_TRUE(step.ideal_seconds.has_value());
  EXPECT_TRUE(step.binding_link.starts_with("nvme ")) << step.binding_link;
  // A drive counts what is complete, the step what was asked for: at both ends the pages may be on their way.
  const MemoryPlan& plan = engine->memory_plan();
  EXPECT_NEAR(*step.ideal_seconds, static_cast<double>(step.nvme_read + step.nvme_written) / 1e6,
              static_cast<double>(plan.slots * plan.slot_bytes) / 1e6);
}

TEST_F(EngineTest, WithoutADriveComputeIsTheBindingResource) {
  const std::unique_ptr<Engine> engine = Engine::create(config(kAllDevice));
  const StepSummary step = train_tiny(*engine, 1).front();
  EXPECT_EQ(step.binding_link, "compute");
  ASSERT_TRUE(step.ideal_seconds.has_value());
  EXPECT_NEAR(*step.ideal_seconds, step.forward_seconds + step.backward_seconds + step.optimizer_seconds, 1e-9);
}

TEST_F(EngineTest, TrainsToTheSameBitsWhateverShareStaysInHostMemory) {
  std::vector<EngineConfig> configs{squeezed(config(kAllDevice))};
  std::vector<std::string> names{kAllDevice.text()};
  for (const double share : {0.0, 0.13, 0.4, 0.99, 1.0}) {
    EngineConfig split = config(kAllNvme);
    split.param_host_share = 1 - share;
    split.optimizer_host_share = share;
    configs.push_back(squeezed(split));
    names.push_back("optimizer " + std::to_string(share) + " in host memory");
  }
  expect_equal_bits(configs, names);
}

TEST_F(EngineTest, AShareInHostMemoryNeverTouchesTheDrive) {
  const auto moved = [&](double share) {
    EngineConfig split = config(kAllNvme);
    split.param_home = TierKind::Host;
    split.optimizer_host_share = share;
    split = squeezed(split);
    split.nvme_budget = std::uint64_t{64} << 20;  // a whole share leaves nothing for the drive, but it is there
    const std::unique_ptr<Engine> engine = Engine::create(split);
    train_tiny(*engine, 1);
    return train_tiny(*engine, 1).front().nvme_written;
  };
  const auto all = static_cast<double>(moved(0));
  EXPECT_EQ(moved(1), 0U);
  // A page or two that stays cached is the difference.
  EXPECT_NEAR(static_cast<double>(moved(0.5)), all / 2, 5 * (256 << 10));
}

TEST_F(EngineTest, TrainsToTheSameBitsInFp32WithTiedEmbeddingsAndMicroBatches) {
  test::write_tiny_model(model(), R"(, "tie_word_embeddings": true)");
  std::vector<EngineConfig> configs;
  std::vector<std::string> names;
  for (const Homes& homes : {kAllDevice, kAllHost, kAllNvme}) {
    EngineConfig one = config(homes);
    one.param_type = DType::F32;
    one.micro_batches = 2;
    configs.push_back(squeezed(one));
    names.push_back(homes.text());
  }
  expect_equal_bits(configs, names);
}

TEST_F(EngineTest, GradientsAddedInTheTypeOfTheWeightsAreTheSameWhereverTheyLive) {
  for (const Accumulation accumulation : {Accumulation::Horizontal, Accumulation::Vertical}) {
    std::vector<EngineConfig> configs;
    std::vector<std::string> names;
    for (const Homes& homes : kHomes) {
      EngineConfig one = config(homes);
      one.micro_batches = 3;
      one.accumulation = accumulation;
      one.accumulate_in_fp32 = false;
      configs.push_back(squeezed(one));
      names.push_back(homes.text());
    }
    expect_equal_bits(configs, names);
  }
  // Half the memory is what it is for.
  EngineConfig one = config(kAllHost);
  one.micro_batches = 3;
  EXPECT_EQ(Engine::plan(one).grad_type, DType::F32);
  one.accumulate_in_fp32 = false;
  EXPECT_EQ(Engine::plan(one).grad_type, one.param_type);
}

TEST_F(EngineTest, TrainsToTheSameBitsWhenAllMicroBatchesPassALayerTogether) {
  std::vector<EngineConfig> configs;
  std::vector<std::string> names;
  for (const Homes& homes : kHomes) {
    EngineConfig one = config(homes);
    one.micro_batches = 3;
    one.accumulation = names.empty() ? Accumulation::Horizontal : Accumulation::Vertical;
    one.adversarial_streams = names.size() % 2 == 1;
    configs.push_back(squeezed(one));
    names.push_back(homes.text());
  }
  expect_equal_bits(configs, names);
}

TEST_F(EngineTest, ChoosesTheOrderOfMicroBatchesThatMovesLess) {
  EngineConfig one = config(kAllNvme);
  one.micro_batches = 3;
  EXPECT_EQ(Engine::plan(one).accumulation, zero::Accumulation::Vertical);
  test::write_tiny_model(model(), R"(, "tie_word_embeddings": true)");
  EXPECT_EQ(Engine::plan(one).accumulation, zero::Accumulation::Horizontal);
}

// Weights are gathered as often as with one micro-batch, and gradients never touch the drive.
TEST_F(EngineTest, ReadsAndWritesAsMuchForThreeMicroBatchesAsForOne) {
  test::write_tiny_model(model(), "", 12);
  const auto moved = [&](std::int64_t micro_batches, Accumulation accumulation) {
    EngineConfig one = config(kAllNvme);
    one.micro_batches = micro_batches;
    one.accumulation = accumulation;
    const std::unique_ptr<Engine> engine = Engine::create(squeezed(one));
    train_tiny(*engine, 3);
    std::uint64_t read = 0;
    std::uint64_t written = 0;
    for (const StepSummary& step : train_tiny(*engine, 4)) {
      read += step.nvme_read;
      written += step.nvme_written;
    }
    return std::pair{static_cast<double>(read), static_cast<double>(written)};
  };
  const auto one = moved(1, Accumulation::Horizontal);
  const auto three = moved(3, Accumulation::Vertical);
  constexpr double kSlack = 4 * 2 * (256 << 10);  // which of two pages stays at a turn, and where a step ends
  EXPECT_NEAR(three.first, one.first, kSlack);
  EXPECT_NEAR(three.second, one.second, kSlack);
  EXPECT_GT(moved(3, Accumulation::Horizontal).first, one.first + kSlack);
}

TEST_F(EngineTest, TrainsToTheSameBitsOnStreamsThatRunLate) {
  std::vector<EngineConfig> configs;
  std::vector<std::string> names;
  for (const Homes& homes : {kAllDevice, kAllHost, kAllNvme}) {
    EngineConfig one = config(homes);
    one.micro_batches = 2;
    one.adversarial_streams = names.size() > 0;
    configs.push_back(one);
    names.push_back(homes.text());
  }
  expect_equal_bits(configs, names);
}

TEST_F(EngineTest, AllocatesWhatItsPlanSaysAndNoMore) {
  for (std::size_t i = 0; i < 2 * std::size(kHomes); ++i) {
    const Homes& homes = kHomes[i / 2];
    SCOPED_TRACE(homes.text());
    EngineConfig one = config(homes);
    if (i % 2 == 1) one.micro_batches = 3;
    if (i % 2 == 1) one.accumulation = Accumulation::Vertical;
    one.recomputed_layers = i % 3;
    const std::unique_ptr<Engine> engine = Engine::create(squeezed(one));
    train_tiny(*engine, 2);
    engine->evaluate(test::tiny_batch(7));
    const PerTier peak = engine->peak_bytes();
    const MemoryPlan& plan = engine->memory_plan();
    for (std::size_t t = 0; t < offload::kTiers; ++t) {
      EXPECT_LE(peak[t], plan.need[t]) << "tier " << t;
      EXPECT_LE(plan.need[t], plan.budgets[t]) << "tier " << t;
    }
    EXPECT_EQ(peak[1], plan.need[1]);
    EXPECT_EQ(peak[2], plan.need[2]);
  }
}

TEST_F(EngineTest, MovesBytesThroughTheDriveWhenStatesLiveThere) {
  const std::unique_ptr<Engine> engine = Engine::create(squeezed(config(kAllNvme)));
  train_tiny(*engine, 1);
  const StepSummary step = train_tiny(*engine, 1).front();
  EXPECT_GT(step.nvme_read, 0u);
  EXPECT_GT(step.nvme_written, 0u);
  EXPECT_GT(step.to_device, 0u);
}

TEST_F(EngineTest, LearnsABatchThatRepeats) {
  const std::unique_ptr<Engine> engine = Engine::create(config());
  const std::vector<data::Batch> batch{test::tiny_batch(1)};
  const double first = engine->train_step(batch, 1e-2).loss;
  double last = first;
  for (int i = 0; i < 10; ++i) last = engine->train_step(batch, 1e-2).loss;
  EXPECT_LT(last, first / 2);
  EXPECT_EQ(engine->state().step, 11);
}

TEST_F(EngineTest, ChangesNothingWhenItEvaluates) {
  std::vector<std::vector<std::uint32_t>> ends;
  for (const bool evaluates : {false, true}) {
    const std::unique_ptr<Engine> engine = Engine::create(squeezed(config(kAllNvme)));
    train_tiny(*engine, 1);
    const std::vector<std::uint32_t> before = tiny_parameter_bits(*engine);
    if (evaluates) {
      const EvalSummary once = engine->evaluate(test::tiny_batch(7));
      EXPECT_EQ(once.loss_sum, engine->evaluate(test::tiny_batch(7)).loss_sum);
      EXPECT_EQ(once.tokens, test::tiny_batch(7).target_tokens);
    }
    EXPECT_TRUE(tiny_parameter_bits(*engine) == before);
    train_tiny(*engine, 2);  // the moments are the same as well
    ends.push_back(tiny_parameter_bits(*engine));
  }
  EXPECT_TRUE(ends[0] == ends[1]);
}

TEST_F(EngineTest, EvaluatesToTheLossThatTrainingReports) {
  const std::unique_ptr<Engine> engine = Engine::create(config());
  const data::Batch batch = test::tiny_batch(3);
  const EvalSummary evaluated = engine->evaluate(batch);
  const StepSummary step = engine->train_step({&batch, 1}, 1e-2);
  EXPECT_NEAR(step.loss, evaluated.loss_sum / static_cast<double>(evaluated.tokens), 1e-6);
}

TEST_F(EngineTest, SkipsAStepWhoseGradientIsNotFinite) {
  const std::unique_ptr<Engine> engine = Engine::create(config(kAllHost));
  const data::Batch batch = test::tiny_batch(3);
  engine->train_step({&batch, 1}, std::numeric_limits<double>::infinity());  // ruins the weights
  const std::vector<std::uint32_t> before = tiny_parameter_bits(*engine);
  const StepSummary step = engine->train_step({&batch, 1}, 1e-2);
  EXPECT_TRUE(step.skipped);
  EXPECT_TRUE(tiny_parameter_bits(*engine) == before);
  EXPECT_EQ(engine->state().step, 1);
  EXPECT_EQ(engine->state().skipped, 1);
}

TEST_F(EngineTest, TrainsToTheSameBitsWheneverItsUpdatesRun) {
  std::vector<EngineConfig> configs;
  std::vector<std::string> names;
  const auto add = [&](const Homes& homes, const std::string& name, const std::function<void(EngineConfig&)>& change) {
    EngineConfig one = config(homes);
    one.adamw.max_grad_norm = 0;
    one.micro_batches = 2;
    change(one);
    configs.push_back(squeezed(one));
    names.push_back(homes.text() + " " + name);
  };
  add(kAllDevice, "after backward", [](EngineConfig& one) { one.overlap_update = false; });
  for (const Homes& homes : kHomes) {
    add(homes, "during backward", [](EngineConfig&) {});
    add(homes, "during backward, late streams", [](EngineConfig& late) {
      late.adversarial_streams = true;
      late.accumulation = Accumulation::Vertical;
    });
  }
  add(kAllNvme, "delayed", [](EngineConfig& one) { one.delay_update = true; });
  expect_equal_bits(configs, names);
}

TEST_F(EngineTest, TrainsToTheSameBitsWhicheverLayersRecompute) {
  std::vector<EngineConfig> configs;
  std::vector<std::string> names;
  for (const Homes& homes : {kAllDevice, kAllHost, kAllNvme}) {
    for (const Accumulation accumulation : {Accumulation::Horizontal, Accumulation::Vertical}) {
      for (const std::uint64_t recomputed : {2, 1, 0}) {
        EngineConfig one = config(homes);
        one.micro_batches = 2;
        one.accumulation = accumulation;
        one.recomputed_layers = recomputed;
        one.adversarial_streams = recomputed == 1;
        configs.push_back(squeezed(one));
        names.push_back(homes.text() + ", recomputed " + std::to_string(recomputed));
      }
    }
  }
  expect_equal_bits(configs, names);
}

TEST_F(EngineTest, RecomputesOnlyWhatDoesNotFit) {
  EngineConfig one = config(kAllHost);
  EXPECT_EQ(Engine::plan(one).kept_graphs, 2U) << "of two layers";
  one.recomputed_layers = 2;
  one.device_budget = Engine::plan(one).need[0];
  one.recomputed_layers.reset();
  EXPECT_EQ(Engine::plan(one).kept_graphs, 0U);
}

TEST_F(EngineTest, EndsARunWhoseUpdatesHaveBegunWhenAGradientIsNotFinite) {
  for (const bool delays : {false, true}) {
    EngineConfig one = config(kAllNvme);
    one.adamw.max_grad_norm = 0;
    one.delay_update = delays;
    const std::unique_ptr<Engine> engine = Engine::create(one);
    const data::Batch batch = test::tiny_batch(3);
    engine->train_step({&batch, 1}, std::numeric_limits<double>::infinity());  // ruins the weights
    if (delays) {
      EXPECT_TRUE(engine->train_step({&batch, 1}, 1e-2).skipped);
      EXPECT_EQ(engine->state().skipped, 1);
      continue;
    }
    for (int again = 0; again < 2; ++again) {
      try {
        engine->train_step({&batch, 1}, 1e-2);
        FAIL() << "not noticed";
      } catch (const DataError& error) {
        EXPECT_NE(std::string(error.what()).find("the gradient of head is not finite"), std::string::npos)
            << error.what();
      }
    }
    EXPECT_EQ(engine->state().step, 1);
    // Some layers are of that step and some are not.
    EXPECT_THROW(engine->export_model(folder_.path() / "half"), DataError);
    EXPECT_THROW(engine->save_states(folder_.path() / "half"), DataError);
    EXPECT_FALSE(std::filesystem::exists(folder_.path() / "half"));
  }
}

TEST_F(EngineTest, SkipsAStepWithNothingToLearnAndGoesOnAsIfItHadNotBeen) {
  std::vector<std::vector<std::uint32_t>> ends;
  for (const bool idles : {false, true, false, true}) {
    EngineConfig one = config(kAllNvme);
    if (ends.size() >= 2) one.adamw.max_grad_norm = 0;
    const std::unique_ptr<Engine> engine = Engine::create(squeezed(one));
    const data::Batch batch = test::tiny_batch(3);
    engine->train_step({&batch, 1}, 1e-2);
    if (idles) {
      data::Batch masked = test::tiny_batch(4);
      masked.labels.assign(masked.labels.size(), -100);
      masked.target_tokens = 0;
      EXPECT_TRUE(engine->train_step({&masked, 1}, 1e-2).skipped);
    }
    engine->train_step({&batch, 1}, 1e-2);
    ends.push_back(tiny_parameter_bits(*engine));
  }
  EXPECT_TRUE(ends[0] == ends[1]);
  EXPECT_TRUE(ends[2] == ends[3]) << "without clipping";
}

TEST_F(EngineTest, GeneratesTheSameTokensWhereverItsParametersLive) {
  std::vector<std::vector<std::int64_t>> made;
  for (const TierKind home : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
    EngineConfig one = config({home, TierKind::Host, TierKind::Host});
    one.training = false;
    one.grad_home.reset();
    one.optimizer_home.reset();
    const std::unique_ptr<Engine> engine = Engine::create(one);
    std::vector<std::int64_t> heard;
    made.push_back(engine->generate({3, 1, 4, 1, 5}, 8, [&](std::int64_t token) { heard.push_back(token); }));
    EXPECT_EQ(heard, made.back());
    EXPECT_EQ(engine->generate({3, 1, 4, 1, 5}, 8), made.back());
  }
  EXPECT_EQ(made[0].size(), 8u);
  EXPECT_EQ(made[1], made[0]);
  EXPECT_EQ(made[2], made[0]);
}

TEST_F(EngineTest, StopsGeneratingAtAnEndOfSequenceToken) {
  const auto generate = [&] { return Engine::create(config())->generate({3, 1, 4, 1, 5}, 8); };
  const std::vector<std::int64_t> free = generate();
  // The first token that differs from the first one, so that something comes before it.
  std::size_t at = 0;
  while (at + 1 < free.size() && free[at] == free[0]) ++at;
  ASSERT_NE(free[at], free[0]) << "the model repeats itself: the test needs another prompt";
  test::write_tiny_model(model(), R"(, "eos_token_id": )" + std::to_string(free[at]));
  EXPECT_EQ(generate(), std::vector<std::int64_t>(free.begin(), free.begin() + static_cast<std::ptrdiff_t>(at)));
}

TEST_F(EngineTest, ThrowsTheFirstCauseAgainAfterAFailure) {
  EngineConfig one = config();
  one.device_budget = Engine::plan(one).need[0];
  const std::unique_ptr<Engine> engine = Engine::create(one);
  const data::Batch batch = test::tiny_batch(1);
  EXPECT_THROW(engine->evaluate(test::tiny_batch(1, 128 * test::kTinyTokens)), OutOfBudget);
  EXPECT_THROW(engine->train_step({&batch, 1}, 1e-2), OutOfBudget);
}

TEST_F(EngineTest, RefusesASwapFolderThatIsAFile) {
  EngineConfig one = config(kAllNvme);
  one.nvme_paths = {model() / "config.json"};
  EXPECT_THROW(Engine::create(one), ConfigError);
}

TEST_F(EngineTest, RefusesASwapFolderBelowAFile) {
  EngineConfig one = config(kAllNvme);
  one.nvme_paths = {model() / "config.json" / "swap"};
  EXPECT_THROW(Engine::create(one), ConfigError);
}

TEST_F(EngineTest, RefusesADriveWithLessSpaceThanItsBudget) {
  const test::SmallMount mount = test::SmallMount::memory("tmpfs", "size=1m");
  if (!mount.mounted()) GTEST_SKIP() << mount.reason();
  EngineConfig one = config(kAllNvme);
  one.nvme_paths = {mount.path()};
  EXPECT_THROW(Engine::create(one), OutOfBudget);
}

TEST_F(EngineTest, LeavesNothingInTheSwapFolder) {
  Engine::create(config(kAllNvme)).reset();
  EXPECT_TRUE(std::filesystem::is_empty(swap()));
}

TEST_F(EngineTest, RefusesHomesOnADriveThatWasNotGiven) {
  EngineConfig one = config();
  one.optimizer_home = TierKind::Nvme;
  EXPECT_THROW(Engine::plan(one), ConfigError);
}

TEST_F(EngineTest, RefusesMoreTokensThanTheModelHasPositions) {
  EngineConfig one = config();
  one.max_tokens = 129;
  EXPECT_THROW(Engine::plan(one), ConfigError);
}

TEST_F(EngineTest, RefusesBudgetsBeyondTheRamOfTheMachine) {
  EngineConfig one = config();
  one.host_budget = std::uint64_t{1} << 50;
  EXPECT_THROW(Engine::plan(one), OutOfBudget);
}

TEST_F(EngineTest, ReadsBackTheModelThatItExported) {
  std::vector<std::uint32_t> trained;
  {
    const std::unique_ptr<Engine> engine = Engine::create(config(kAllNvme));
    train_tiny(*engine, 1);
    engine->export_model(folder_.path() / "exported");
    trained = tiny_parameter_bits(*engine);
  }
  EngineConfig one = config();
  one.model = folder_.path() / "exported";
  one.random_weights = false;
  const std::unique_ptr<Engine> engine = Engine::create(one);
  const std::vector<std::uint32_t> read = tiny_parameter_bits(*engine);
  ASSERT_EQ(read.size(), trained.size());
  for (std::size_t i = 0; i < read.size(); ++i) {
    // In the export's type, as config.json says.
    const float rounded = bf16_to_float(float_to_bf16(float_from_bits(trained[i])));
    ASSERT_EQ(read[i], float_bits(rounded)) << i;
  }
}

TEST_F(EngineTest, SaysThatTheFolderOfAnExportCannotBeMade) {
  EXPECT_THROW(Engine::create(config())->export_model(model() / "config.json" / "exported"), IoError);
}

TEST_F(EngineTest, NamesTheTensorThatAModelFolderLacks) {
  Engine::create(config())->export_model(folder_.path() / "exported");
  test::write_tiny_model(folder_.path() / "exported", R"(, "attention_bias": true)");
  EngineConfig one = config();
  one.model = folder_.path() / "exported";
  one.random_weights = false;
  try {
    Engine::create(one);
    FAIL() << "accepted";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("q_proj.bias: absent"), std::string::npos) << error.what();
  }
}

TEST_F(EngineTest, HasNoParameterOfAnotherName) {
  EXPECT_THROW(Engine::create(config())->parameter("model.layers.2.mlp.up_proj.weight"), ConfigError);
}

}  // namespace
}  // namespace strata::engine
