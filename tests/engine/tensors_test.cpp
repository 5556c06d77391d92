// Engine::get and set: whole tensors by name, on any tier and any number of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "core/error.h"
#include "core/numeric.h"
#include "engine/engine.h"
#include "engine/tiny_ranks.h"
#include "engine/tiny_run.h"
#include "hf/safetensors.h"
#include "support/temp_dir.h"

namespace strata::engine {
namespace {

using offload::TierKind;
using test::run_engines;
using test::train_tiny;
using ::testing::HasSubstr;

constexpr TierKind kHomes[] = {TierKind::Device, TierKind::Host, TierKind::Nvme};
constexpr const char* kQuery = "model.layers.1.self_attn.q_proj.weight";
constexpr const char* kNorm = "model.norm.weight";
constexpr const char* kEmbeddings = "model.embed_tokens.weight";

// Ranks that divide different things among them; a single rank has no stage.
struct Division {
  std::size_t ranks;
  int stage;
};
constexpr Division kDivisions[] = {{1, 3}, {2, 0}, {2, 1}, {3, 2}, {2, 3}, {3, 3}};

std::string text(TierKind home, const Division& division) {
  return std::string(name_of(home)) + ", " + std::to_string(division.ranks) + " ranks, stage " +
         std::to_string(division.stage);
}

class TensorsTest : public testing::Test {
 protected:
  TensorsTest() { test::write_tiny_model(folder_.path() / "model"); }

  EngineConfig config(TierKind home = TierKind::Device, const OptimizerConfig& optimizer = {}) const {
    EngineConfig config = test::tiny_engine_on(home, folder_.path() / "model", folder_.path());
    config.optimizer = optimizer;
    return config;
  }
  // What every rank keeps whole is not on a drive.
  EngineConfig divided(TierKind home, const Division& division, const OptimizerConfig& optimizer = {}) const {
    EngineConfig divided = config(home, optimizer);
    divided.zero_stage = division.stage;
    if (home != TierKind::Nvme || division.ranks == 1) return divided;
    if (division.stage < 3) divided.param_home = TierKind::Host;
    if (division.stage < 1) divided.optimizer_home = TierKind::Host;
    return divided;
  }

  test::TempDir folder_;
};

// Not on the grid of any narrow type.
std::vector<float> numbers(std::size_t numel, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(numel);
  for (float& value : values) value = 1e-3F * static_cast<float>(random() % 100003) + 1e-6F;
  return values;
}

std::vector<std::string> moments_of(const EngineConfig& config) {
  std::vector<std::string> names;
  for (const MomentSpec& spec : moment_specs(config.optimizer.kind)) names.emplace_back(spec.name);
  return names;
}

// Everything that can be asked for, but gradients.
std::map<std::string, std::vector<float>> all_tensors(Engine& engine) {
  std::map<std::string, std::vector<float>> all;
  for (const std::string& name : test::tiny_parameter_names(engine)) {
    all["parameter " + name] = engine.get("parameter", name);
    for (const std::string& what : moments_of(engine.config())) all[what + " " + name] = engine.get(what, name);
  }
  return all;
}

constexpr OptimizerConfig kExact{OptimizerKind::AdamW, MasterEncoding::Fp32, MomentEncoding::Fp32};
constexpr OptimizerConfig kRemainder{OptimizerKind::AdamW, MasterEncoding::Remainder, MomentEncoding::Fp32};
constexpr OptimizerConfig kHalf{OptimizerKind::AdamW, MasterEncoding::Remainder, MomentEncoding::Bf16};
constexpr OptimizerConfig kNarrow{OptimizerKind::AdamW, MasterEncoding::Fp32, MomentEncoding::Block8};

TEST_F(TensorsTest, WhatIsSetIsReadBackOnEveryRankAndNothingElseChanges) {
  for (const TierKind home : kHomes) {
    for (const OptimizerConfig& optimizer : {kExact, kRemainder}) {
      for (const Division& division : kDivisions) {
        SCOPED_TRACE(text(home, division));
        run_engines(divided(home, division, optimizer), division.ranks, [&](Engine& engine) {
          train_tiny(engine, 1);
          std::map<std::string, std::vector<float>> expected = all_tensors(engine);
          for (const std::string what : {"parameter", "exp_avg", "exp_avg_sq"}) {
            for (const char* name : {kQuery, kNorm, kEmbeddings}) {
              std::vector<float>& values = expected[what + " " + name];
              values = numbers(values.size(), values.size() + what.size());
              engine.set(what, name, values);
            }
          }
          EXPECT_TRUE(all_tensors(engine) == expected);
        });
      }
    }
  }
}

TEST_F(TensorsTest, NarrowStatesAreRoundedAsTheyAreStored) {
  for (const std::size_t ranks : {1, 3}) {
    for (const OptimizerConfig& optimizer : {kHalf, kNarrow}) {
      run_engines(config(TierKind::Nvme, optimizer), ranks, [&](Engine& engine) {
        for (const std::string what : {"exp_avg", "exp_avg_sq"}) {
          const std::vector<float> values = numbers(engine.get(what, kQuery).size(), 3);
          engine.set(what, kQuery, values);
          const std::vector<float> read = engine.get(what, kQuery);
          for (std::size_t i = 0; i < values.size(); ++i) {
            if (optimizer.moments == MomentEncoding::Bf16) {
              ASSERT_EQ(read[i], bf16_to_float(float_to_bf16(values[i])));
            } else {
              // Half of the widest interval of a code: 0.9 / 64 of the block's largest value, at most 100 here.
              ASSERT_NEAR(read[i], values[i], 100 * 0.9 / 64 / 2 + 1e-3) << what << " " << i;
            }
          }
          engine.set(what, kQuery, read);  // on the grid by now
          EXPECT_EQ(engine.get(what, kQuery), read);
        }
      });
    }
  }
}

TEST_F(TensorsTest, TheWeightOfASetParameterIsItsMasterRounded) {
  run_engines(config(TierKind::Nvme, kRemainder), 2, [&](Engine& engine) {
    const std::vector<float> values = numbers(engine.parameter(kQuery).size(), 4);
    engine.set("parameter", kQuery, values);
    engine.export_model(folder_.path() / "exported");
    if (engine.communicator().rank() != 0) return;
    const hf::TensorCatalog catalog = hf::TensorCatalog::open_folder(folder_.path() / "exported");
    std::vector<std::uint16_t> stored(values.size());
    catalog.read(*catalog.find(kQuery), 0, std::as_writable_bytes(std::span(stored)));
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(stored[i], float_to_bf16(values[i])) << i;
  });
}

// On every rank the next forward sees what was set, wherever it keeps or gathers it.
TEST_F(TensorsTest, WhatIsSetIsWhatTheNextForwardUses) {
  for (const TierKind home : kHomes) {
    for (const Division& division : kDivisions) {
      SCOPED_TRACE(text(home, division));
      run_engines(divided(home, division), division.ranks, [&](Engine& engine) {
        train_tiny(engine, 1);
        const EvalSummary before = engine.evaluate(test::tiny_batch(1));
        const std::vector<float> values = engine.parameter(kEmbeddings);
        engine.set("parameter", kEmbeddings, numbers(values.size(), 2));
        EXPECT_NE(engine.evaluate(test::tiny_batch(1)).loss_sum, before.loss_sum);
        engine.set("parameter", kEmbeddings, values);
        EXPECT_EQ(engine.evaluate(test::tiny_batch(1)).loss_sum, before.loss_sum);
      });
    }
  }
}

// Parameters and momentum are all that this optimizer knows, so another engine that is given them goes on the same.
TEST_F(TensorsTest, AnEngineGivenAllTensorsOfAnotherGoesOnToTheSameBits) {
  const OptimizerConfig momentum{OptimizerKind::Momentum, MasterEncoding::Fp32, MomentEncoding::Fp32};
  const std::vector<data::Batch> batch{test::tiny_batch(5)};
  std::map<std::string, std::vector<float>> before, after;
  run_engines(config(TierKind::Nvme, momentum), 1, [&](Engine& engine) {
    train_tiny(engine, 2);
    before = all_tensors(engine);
    engine.train_step(batch, 1e-2);
    after = all_tensors(engine);
  });
  EngineConfig other = config(TierKind::Host, momentum);
  other.seed = 7;
  run_engines(other, 1, [&](Engine& engine) {
    for (const auto& [key, values] : before) {
      const std::size_t space = key.find(' ');
      engine.set(key.substr(0, space), key.substr(space + 1), values);
    }
    engine.train_step(batch, 1e-2);
    EXPECT_TRUE(all_tensors(engine) == after);
  });
}

// Plain SGD: the step is the gradient times the rate.
TEST_F(TensorsTest, AGradientIsTheMeanOfTheLastStepOverAllRanks) {
  constexpr double kRate = 0.5;
  for (const TierKind home : kHomes) {
    for (const Division& division : kDivisions) {
      SCOPED_TRACE(text(home, division));
      EngineConfig sgd = divided(home, division, {OptimizerKind::Sgd, MasterEncoding::Fp32, MomentEncoding::Fp32});
      sgd.param_type = DType::F32;
      sgd.adamw.weight_decay = 0;
      sgd.adamw.max_grad_norm = 1e9;  // clips nothing
      if (home == TierKind::Nvme && division.stage >= 2) sgd.grad_home = TierKind::Nvme;
      run_engines(sgd, division.ranks, [&](Engine& engine) {
        const std::vector<data::Batch> batch{test::tiny_batch(engine.communicator().rank())};
        for (const char* name : {kQuery, kNorm, kEmbeddings}) {
          const std::vector<float> before = engine.parameter(name);
          const StepSummary step = engine.train_step(batch, kRate);
          const std::vector<float> gradient = engine.get("gradient", name);
          const std::vector<float> after = engine.parameter(name);
          double largest = 0;
          for (std::size_t i = 0; i < after.size(); ++i) {
            largest = std::max(largest, std::abs(static_cast<double>(gradient[i])));
            // One rounding of the parameter.
            ASSERT_NEAR(after[i], before[i] - kRate * gradient[i], 1e-7 * std::max(1.0, std::abs(1.0 * before[i])));
          }
          EXPECT_GT(largest, 0);
          EXPECT_LE(largest, step.grad_norm * (1 + 1e-6));
        }
      });
    }
  }
}

std::string refusal(Engine& engine, const std::function<void()>& call) {
  std::string text;
  try {
    call();
    ADD_FAILURE() << "accepted";
  } catch (const ConfigError& error) {
    text = error.what();
  }
  EXPECT_FALSE(engine.parameter(kNorm).empty()) << "the engine goes on";
  return text;
}

TEST_F(TensorsTest, SaysWhichTensorsThereAre) {
  run_engines(config(), 2, [&](Engine& engine) {
    EXPECT_THAT(refusal(engine, [&] { engine.get("exp_avg_cube", kNorm); }),
                HasSubstr("parameter, gradient, exp_avg, exp_avg_sq"));
    EXPECT_THAT(refusal(engine, [&] { engine.get("parameter", "model.layers.2.mlp.up_proj.weight"); }),
                HasSubstr("no parameter model.layers.2.mlp.up_proj.weight"));
    EXPECT_THAT(refusal(engine, [&] { engine.get("gradient", kNorm); }), HasSubstr("before a step"));
    EXPECT_THAT(refusal(engine, [&] { engine.get("exp_avg_scale", kNorm); }), HasSubstr("no tensor"));
  });
}

TEST_F(TensorsTest, RefusesWhatCannotBeStoredBeforeAnythingChanges) {
  EngineConfig fp16 = config(TierKind::Nvme, kNarrow);
  fp16.param_type = DType::F16;
  run_engines(fp16, 2, [&](Engine& engine) {
    const auto before = all_tensors(engine);
    std::vector<float> values = engine.parameter(kNorm);
    EXPECT_THAT(refusal(engine, [&] { engine.set("gradient", kNorm, values); }), HasSubstr("would change nothing"));
    EXPECT_THAT(refusal(engine, [&] { engine.set("parameter", kNorm, std::span(values).first(3)); }),
                HasSubstr("has 64 values, not 3"));
    values[5] = 70000;
    EXPECT_THAT(refusal(engine, [&] { engine.set("parameter", kNorm, values); }), HasSubstr("value 5 is 70000"));
    values[5] = std::nanf("");
    EXPECT_THAT(refusal(engine, [&] { engine.set("exp_avg", kNorm, values); }), HasSubstr("value 5"));
    values[5] = -1;
    EXPECT_THAT(refusal(engine, [&] { engine.set("exp_avg_sq", kNorm, values); }), HasSubstr("value 5 is -1"));
    EXPECT_TRUE(all_tensors(engine) == before);
    engine.set("exp_avg", kNorm, values);
    EXPECT_FALSE(all_tensors(engine) == before);
  });
}

TEST_F(TensorsTest, AGradientWhoseMemoryOthersHaveUsedIsGone) {
  EngineConfig early = config(TierKind::Host);
  early.adamw.max_grad_norm = 0;  // updates run during backward
  run_engines(early, 1, [&](Engine& engine) {
    ASSERT_FALSE(engine.memory_plan().grad_homes.empty());
    train_tiny(engine, 1);
    EXPECT_THAT(refusal(engine, [&] { engine.get("gradient", kQuery); }), HasSubstr("is gone"));
  });
  early.delay_update = true;
  run_engines(early, 1, [&](Engine& engine) {
    train_tiny(engine, 1);
    EXPECT_FALSE(engine.get("gradient", kQuery).empty());
  });
}

TEST_F(TensorsTest, AnEngineWithoutTrainingHasItsWeightsAlone) {
  EngineConfig frozen = config();
  frozen.training = false;
  run_engines(frozen, 2, [&](Engine& engine) {
    std::vector<float> values = numbers(64, 8);
    engine.set("parameter", kNorm, values);
    for (float& value : values) value = bf16_to_float(float_to_bf16(value));
    EXPECT_EQ(engine.parameter(kNorm), values);
    EXPECT_THAT(refusal(engine, [&] { engine.get("gradient", kNorm); }), HasSubstr("without training"));
    EXPECT_THAT(refusal(engine, [&] { engine.get("exp_avg", kNorm); }), HasSubstr("without training"));
  });
}

}  // namespace
}  // namespace strata::engine
