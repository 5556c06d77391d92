// fp16 training through the engine: loss scale, skipped steps, placement, checkpoints, weights out of range.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>

#include "core/error.h"
#include "core/numeric.h"
#include "engine/checkpoint.h"
#include "engine/engine.h"
#include "engine/tiny_run.h"
#include "hf/safetensors.h"
#include "support/temp_dir.h"

namespace strata::engine {
namespace {

using offload::TierKind;
using test::tiny_parameter_bits;
using test::train_tiny;
using testing::AllOf;
using testing::HasSubstr;

constexpr TierKind kHomes[] = {TierKind::Device, TierKind::Host, TierKind::Nvme};
constexpr double kTooLarge = 0x1p40;  // a scale at which the first gradients overflow

std::string bytes_of_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class Fp16Test : public testing::Test {
 protected:
  Fp16Test() { test::write_tiny_model(folder_.path() / "model"); }

  EngineConfig config(TierKind home = TierKind::Device, LossScaleConfig scale = {}) const {
    EngineConfig config = test::tiny_engine_on(home, folder_.path() / "model", folder_.path());
    config.param_type = DType::F16;
    config.loss_scale = scale;
    return config;
  }
  // Masters, moments and everything else that a checkpoint holds of tensors.
  std::string states(Engine& engine) const {
    const std::filesystem::path folder = folder_.path() / "states";
    std::filesystem::create_directories(folder);
    engine.save_states(folder);
    return bytes_of_file(folder / "states.safetensors");
  }

  test::TempDir folder_;
};

TEST_F(Fp16Test, LearnsABatchThatRepeats) {
  for (const Compute compute : {Compute::Fp32, Compute::ParamType}) {
    EngineConfig one = config();
    one.compute = compute;
    const std::unique_ptr<Engine> engine = Engine::create(one);
    EXPECT_EQ(engine->compute_name(), compute == Compute::Fp32 ? "fp32" : "fp16");
    const std::vector<data::Batch> batch{test::tiny_batch(1)};
    const double first = engine->train_step(batch, 1e-2).loss;
    double last = first;
    for (int i = 0; i < 10; ++i) last = engine->train_step(batch, 1e-2).loss;
    EXPECT_LT(last, first / 2);
    EXPECT_EQ(engine->state().step + engine->state().skipped, 11);
    EXPECT_LE(engine->state().skipped, 2);
  }
}

// Skips at the start, scales that grow until they overflow, updates that run at different times.
TEST_F(Fp16Test, TrainsToTheSameBitsWhereverItsStatesLive) {
  for (const std::int64_t micro_batches : {1, 3}) {
    std::vector<std::uint32_t> reference;
    std::vector<double> losses;
    RunState reached;
    const auto expect_same = [&](const EngineConfig& one, const std::string& name) {
      SCOPED_TRACE(name + ", micro-batches " + std::to_string(micro_batches));
      const std::unique_ptr<Engine> engine = Engine::create(one);
      const std::vector<StepSummary> steps = train_tiny(*engine, 14);
      const std::vector<std::uint32_t> bits = tiny_parameter_bits(*engine);
      if (reference.empty()) {
        reference = bits;
        for (const StepSummary& step : steps) losses.push_back(step.loss);
        reached = engine->state();
        ASSERT_GT(reached.skipped, 2);
        ASSERT_GT(reached.step, 4);
        return;
      }
      EXPECT_TRUE(bits == reference);
      for (std::size_t s = 0; s < steps.size(); ++s) EXPECT_EQ(steps[s].loss, losses[s]) << "step " << s;
      EXPECT_EQ(engine->state().skipped, reached.skipped);
      EXPECT_EQ(engine->state().loss_scale, reached.loss_scale);
    };
    for (const TierKind home : kHomes) {
      for (const bool late : {false, true}) {
        EngineConfig one = config(home, {.initial = 0x1p24, .window = 2});
        one.micro_batches = micro_batches;
        one.adamw.max_grad_norm = 0;
        one.adversarial_streams = late;
        if (late) one.grad_home = home;  // on the drive too
        expect_same(one, std::string(name_of(home)) + (late ? ", late streams" : ""));
        one.overlap_update = false;
        expect_same(one, std::string(name_of(home)) + ", one after the other");
      }
    }
  }
}

// NUM-27: no bit of weights, moments, step count or learning-rate schedule moves in a skipped step, and the next good
// one is that of a run that never saw it.
TEST_F(Fp16Test, ASkippedStepChangesNoBitAndTheNextOneIsThatOfARunWithoutIt) {
  for (const TierKind home : kHomes) {
    for (const double max_norm : {1.0, 0.0}) {
      SCOPED_TRACE(std::string(name_of(home)) + ", max_grad_norm " + std::to_string(max_norm));
      const std::vector<data::Batch> batch{test::tiny_batch(3)};
      const std::vector<data::Batch> other{test::tiny_batch(4)};
      // One good step first, so that moments are not zero. Then the scale is raised, as a resume may do.
      EngineConfig good = config(home, {.initial = 1024});
      good.adamw.max_grad_norm = max_norm;
      if (max_norm > 0) good.grad_home = home;  // on the drive too
      const std::unique_ptr<Engine> before = Engine::create(good);
      ASSERT_FALSE(before->train_step(batch, 1e-2).skipped);
      const RunState state = before->state();
      const std::string snapshot = states(*before);

      EngineConfig raised = good;
      raised.loss_scale = LossScaleConfig{.initial = kTooLarge};
      const std::unique_ptr<Engine> engine = Engine::create(raised);
      engine->load_states(folder_.path() / "states", {state.step, 0, {}});
      double scale = kTooLarge;
      StepSummary step;
      std::int64_t skipped = 0;
      for (;; ++skipped, scale /= 2) {
        ASSERT_LT(skipped, 60);
        EXPECT_EQ(engine->state().loss_scale, (LossScaleState{scale, 0}));
        step = engine->train_step(other, 1e-2);
        EXPECT_EQ(step.loss_scale, scale);
        if (!step.skipped) break;
        EXPECT_EQ(engine->state().step, state.step);
        EXPECT_EQ(engine->state().skipped, skipped + 1);
        EXPECT_TRUE(states(*engine) == snapshot) << "skip " << skipped;
      }
      ASSERT_GT(skipped, 1);
      EXPECT_EQ(engine->state().step, state.step + 1);

      EngineConfig fitting = good;
      fitting.loss_scale = LossScaleConfig{.constant = scale};
      const std::unique_ptr<Engine> reference = Engine::create(fitting);
      reference->load_states(folder_.path() / "states", state);  // of the first engine: skips change nothing
      const StepSummary expected = reference->train_step(other, 1e-2);
      EXPECT_EQ(step.loss, expected.loss);
      EXPECT_EQ(step.grad_norm, expected.grad_norm);
      EXPECT_TRUE(states(*engine) == states(*reference));
    }
  }
}

TEST_F(Fp16Test, AConstantScaleStaysAndItsOverflowsAreSkipped) {
  const std::unique_ptr<Engine> engine = Engine::create(config(TierKind::Host, {.constant = kTooLarge}));
  for (const StepSummary& step : train_tiny(*engine, 3)) EXPECT_TRUE(step.skipped);
  EXPECT_EQ(engine->state().skipped, 3);
  EXPECT_EQ(engine->state().loss_scale.scale, kTooLarge);
}

TEST_F(Fp16Test, ABatchWithNothingToLearnLeavesTheScaleAlone) {
  const std::unique_ptr<Engine> engine = Engine::create(config());
  data::Batch masked = test::tiny_batch(4);
  masked.labels.assign(masked.labels.size(), -100);
  masked.target_tokens = 0;
  const LossScaleState before = engine->state().loss_scale;
  EXPECT_TRUE(engine->train_step({&masked, 1}, 1e-2).skipped);
  EXPECT_EQ(engine->state().loss_scale, before);
}

// NUM-24
TEST_F(Fp16Test, ARunWhoseScaleWouldFallBelowTheMinimumEndsWithAdvice) {
  const std::unique_ptr<Engine> engine = Engine::create(config(TierKind::Host, {.initial = 1024, .minimum = 256}));
  const std::vector<data::Batch> batch{test::tiny_batch(3)};
  engine->train_step(batch, std::numeric_limits<double>::infinity());  // ruins the weights
  EXPECT_TRUE(engine->train_step(batch, 1e-2).skipped);
  EXPECT_TRUE(engine->train_step(batch, 1e-2).skipped);
  try {
    engine->train_step(batch, 1e-2);
    FAIL() << "went on";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("loss scale of 256"), HasSubstr("bf16: true"), HasSubstr("lower learning_rate")));
  }
  EXPECT_EQ(engine->state().step, 1);
  EXPECT_EQ(engine->state().skipped, 3);
}

// With a type as wide as fp32 nothing over- or underflows, so a power of two must come out again without a trace: in
// norms, clip factors, moments and weights.
TEST_F(Fp16Test, APowerOfTwoLeavesNoTraceWhereNothingOverflows) {
  for (const std::int64_t micro_batches : {1, 2}) {
    EngineConfig plain = config(TierKind::Host);
    plain.param_type = DType::BF16;
    plain.micro_batches = micro_batches;
    plain.adamw.max_grad_norm = 0.1;
    EngineConfig scaled = plain;
    plain.loss_scale.reset();
    scaled.loss_scale = LossScaleConfig{.initial = 4096, .window = 1};
    const std::unique_ptr<Engine> a = Engine::create(plain);
    const std::unique_ptr<Engine> b = Engine::create(scaled);
    const std::vector<StepSummary> plain_steps = train_tiny(*a, 4);
    const std::vector<StepSummary> scaled_steps = train_tiny(*b, 4);
    for (std::size_t s = 0; s < plain_steps.size(); ++s) {
      EXPECT_EQ(scaled_steps[s].loss, plain_steps[s].loss);
      EXPECT_EQ(scaled_steps[s].grad_norm, plain_steps[s].grad_norm);
      EXPECT_EQ(scaled_steps[s].loss_scale, 4096 << s);
      EXPECT_EQ(plain_steps[s].loss_scale, 0);
    }
    EXPECT_TRUE(states(*a) == states(*b));
  }
}

TEST_F(Fp16Test, AResumedRunContinuesWithTheSameBitsAndScale) {
  const LossScaleConfig grows{.initial = 0x1p20, .window = 3};
  const std::filesystem::path out = folder_.path() / "out";
  const std::unique_ptr<Engine> uninterrupted = Engine::create(config(TierKind::Nvme, grows));
  const auto in_a_window = [&] {  // after a skip, and neither at its beginning nor at its end
    return uninterrupted->state().skipped > 0 && uninterrupted->state().loss_scale.good_steps > 0;
  };
  for (int steps = 0; !in_a_window(); ++steps) {
    ASSERT_LT(steps, 30);
    train_tiny(*uninterrupted, 1);
  }
  const TrainerState saved{uninterrupted->state(), {}, 0, 42, {}};
  const std::filesystem::path checkpoint = save_checkpoint(*uninterrupted, saved, out, 0);
  train_tiny(*uninterrupted, 8);

  for (const TierKind home : {TierKind::Device, TierKind::Host}) {
    const std::unique_ptr<Engine> resumed = Engine::create(config(home, grows));
    train_tiny(*resumed, 2);  // so that nothing is right by chance
    EXPECT_EQ(load_checkpoint(*resumed, checkpoint).run.loss_scale, saved.run.loss_scale);
    EXPECT_EQ(resumed->state().loss_scale, saved.run.loss_scale);
    train_tiny(*resumed, 8);
    EXPECT_TRUE(states(*resumed) == states(*uninterrupted));
    EXPECT_EQ(resumed->state().loss_scale, uninterrupted->state().loss_scale);
    EXPECT_EQ(resumed->state().skipped, uninterrupted->state().skipped);
  }
}

TEST_F(Fp16Test, ABf16CheckpointContinuesInFp16AndBack) {
  EngineConfig bf16 = config();
  bf16.param_type = DType::BF16;
  bf16.loss_scale.reset();
  const std::unique_ptr<Engine> before = Engine::create(bf16);
  train_tiny(*before, 2);
  const std::filesystem::path in_bf16 =
      save_checkpoint(*before, {before->state(), {}, 0, 42, {}}, folder_.path() / "bf16", 0);
  EXPECT_THAT(bytes_of_file(in_bf16 / "strata.json"), testing::Not(HasSubstr("loss_scale\"")));

  const std::unique_ptr<Engine> fp16 = Engine::create(config());
  load_checkpoint(*fp16, in_bf16);
  EXPECT_TRUE(tiny_parameter_bits(*fp16) == tiny_parameter_bits(*before));
  EXPECT_EQ(fp16->state().loss_scale, (LossScaleState{65536, 0}));
  train_tiny(*fp16, 2);
  const std::filesystem::path in_fp16 =
      save_checkpoint(*fp16, {fp16->state(), {}, 0, 42, {}}, folder_.path() / "fp16", 0);
  EXPECT_THAT(bytes_of_file(in_fp16 / "config.json"), HasSubstr("\"torch_dtype\": \"float16\""));

  const std::unique_ptr<Engine> after = Engine::create(bf16);
  load_checkpoint(*after, in_fp16);
  EXPECT_TRUE(tiny_parameter_bits(*after) == tiny_parameter_bits(*fp16));
  EXPECT_EQ(after->state().loss_scale, LossScaleState{});
}

// NUM-26, of a checkpoint; of a model folder: tests/integration/test_fp16.py
TEST_F(Fp16Test, ACheckpointOutOfRangeIsRefusedWithTensorAndValue) {
  EngineConfig bf16 = config();
  bf16.param_type = DType::BF16;
  bf16.loss_scale.reset();
  const std::unique_ptr<Engine> before = Engine::create(bf16);
  before->train_step(std::vector<data::Batch>{test::tiny_batch(3)}, 1e6);  // AdamW moves each weight by the rate
  std::filesystem::create_directories(folder_.path() / "wide");
  before->save_states(folder_.path() / "wide");
  const std::unique_ptr<Engine> engine = Engine::create(config());
  try {
    engine->load_states(folder_.path() / "wide", before->state());
    FAIL() << "accepted";
  } catch (const DataError& error) {
    const std::vector<float> values = before->parameter("model.embed_tokens.weight");
    const auto first = std::ranges::find_if(values, [](float v) { return std::fabs(v) >= 65520; });
    ASSERT_NE(first, values.end());
    std::ostringstream value;
    value << "model.embed_tokens.weight: element " << first - values.begin() << " is " << *first;
    EXPECT_THAT(error.what(), AllOf(HasSubstr("states.safetensors"), HasSubstr(value.str()), HasSubstr("bf16: true")));
  }
}

TEST_F(Fp16Test, ExportsFp16WithAConfigThatAgrees) {
  const std::unique_ptr<Engine> engine = Engine::create(config());
  train_tiny(*engine, 2);
  const std::filesystem::path exported = folder_.path() / "exported";
  engine->export_model(exported);
  EXPECT_THAT(bytes_of_file(exported / "config.json"), HasSubstr("\"torch_dtype\": \"float16\""));
  const hf::TensorCatalog catalog = hf::TensorCatalog::open_folder(exported);
  for (const auto& [name, tensor] : catalog.tensors()) EXPECT_EQ(tensor.dtype, DType::F16) << name;

  EngineConfig again = config();
  again.model = exported;
  again.random_weights = false;
  const std::unique_ptr<Engine> read = Engine::create(again);
  const std::vector<std::uint32_t> trained = tiny_parameter_bits(*engine);
  const std::vector<std::uint32_t> bits = tiny_parameter_bits(*read);
  ASSERT_EQ(bits.size(), trained.size());
  for (std::size_t i = 0; i < bits.size(); ++i) {
    ASSERT_EQ(bits[i], float_bits(half_to_float(float_to_half(float_from_bits(trained[i]))))) << i;
  }
}

TEST_F(Fp16Test, ARemainderIsRefused) {
  EngineConfig one = config();
  one.optimizer.master = MasterEncoding::Remainder;
  EXPECT_THROW(Engine::plan(one), ConfigError);
}

TEST_F(Fp16Test, AllocatesNoMoreThanItsPlanInEitherComputeType) {
  for (const Compute compute : {Compute::Fp32, Compute::ParamType}) {
    EngineConfig one = config(TierKind::Nvme);
    one.compute = compute;
    one.micro_batches = 2;
    one.device_budget = Engine::plan(one).need[0];
    const std::unique_ptr<Engine> engine = Engine::create(one);
    train_tiny(*engine, 2);
    const PerTier peak = engine->peak_bytes();
    for (std::size_t t = 0; t < offload::kTiers; ++t) EXPECT_LE(peak[t], engine->memory_plan().need[t]) << "tier " << t;
  }
}

}  // namespace
}  // namespace strata::engine
