// Runs in which some layers are frozen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "core/numeric.h"
#include "engine/checkpoint.h"
#include "engine/tiny_ranks.h"
#include "engine/tiny_run.h"
#include "hf/safetensors.h"
#include "support/temp_dir.h"

namespace strata::engine {
namespace {

using offload::TierKind;
using ::testing::HasSubstr;

using Names = std::vector<std::string>;
using Values = std::map<std::string, std::vector<float>>;

bool is_frozen(const Names& frozen, const std::string& name) {
  for (const std::string& prefix : frozen) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

// What is frozen has no more than its weight, where others have a master.
void round_frozen(Values& values, const Names& frozen, DType type) {
  for (auto& [name, elements] : values) {
    if (type != DType::BF16 || !is_frozen(frozen, name)) continue;
    for (float& value : elements) value = bf16_to_float(float_to_bf16(value));
  }
}

void step(Engine& engine) {
  std::vector<data::Batch> batches;
  const Communicator& comm = engine.communicator();
  for (std::int64_t m = 0; m < engine.config().micro_batches; ++m) {
    const std::uint64_t number = static_cast<std::uint64_t>(m) * comm.world() + comm.rank();
    batches.push_back(test::tiny_batch(100 * static_cast<std::uint64_t>(engine.state().step) + number));
  }
  engine.train_step(batches, 1e-2);
}

Values parameters(Engine& engine) {
  Values values;
  for (const std::string& name : test::tiny_parameter_names(engine)) values[name] = engine.parameter(name);
  return values;
}

class FrozenTest : public ::testing::Test {
 protected:
  FrozenTest() { test::write_tiny_model(model()); }
  std::filesystem::path model() const { return folder_.path() / "model"; }
  EngineConfig on(TierKind home, const Names& frozen = {"model.embed_tokens", "model.layers.0."}) const {
    EngineConfig config = test::tiny_engine_on(home, model(), folder_.path());
    config.frozen_parameters = frozen;
    config.device_budget = config.host_budget = config.nvme_budget = std::uint64_t{256} << 20;
    return config;
  }
  // What a run ends with.
  Values trained(const EngineConfig& config, std::size_t ranks, int steps) const {
    Values values;
    test::run_engines(config, ranks, [&](Engine& engine) {
      for (int i = 0; i < steps; ++i) step(engine);
      Values mine = parameters(engine);
      if (engine.communicator().rank() == 0) values = std::move(mine);
    });
    return values;
  }
  // A run of the whole model in which the frozen parameters are put back after every step: without clipping the others
  // cannot tell the difference.
  Values put_back(EngineConfig config, std::size_t ranks, int steps) const {
    const Names frozen = std::exchange(config.frozen_parameters, {});
    Values values;
    test::run_engines(config, ranks, [&](Engine& engine) {
      const Values first = parameters(engine);
      for (int i = 0; i < steps; ++i) {
        step(engine);
        for (const auto& [name, value] : first) {
          if (is_frozen(frozen, name)) engine.set("parameter", name, value);
        }
      }
      Values mine = parameters(engine);
      if (engine.communicator().rank() == 0) values = std::move(mine);
    });
    round_frozen(values, frozen, config.param_type);
    return values;
  }

  test::TempDir folder_;
};

void expect_same(const Values& a, const Values& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) EXPECT_TRUE(values == b.at(name)) << name;
}

const std::vector<Names> kFrozen{{"model.embed_tokens", "model.layers.0."},
                                 {"model.layers.1"},
                                 {"model.norm", "lm_head"},
                                 {"model.embed_tokens", "model.layers"}};

TEST_F(FrozenTest, TheOthersTrainToTheBitsOfARunThatPutsTheFrozenOnesBack) {
  for (const Names& frozen : kFrozen) {
    EngineConfig config = on(TierKind::Host, frozen);
    config.adamw.max_grad_norm = 0;
    const Values before = trained(config, 1, 0);
    for (const std::size_t ranks : {1, 2}) {
      const Values expected = put_back(config, ranks, 3);
      for (const auto& [name, values] : before) {
        EXPECT_EQ(values == expected.at(name), is_frozen(frozen, name)) << name;
      }
      for (const int stage : {0, 1, 2, 3}) {
        SCOPED_TRACE(frozen.front() + ", " + std::to_string(ranks) + " ranks, stage " + std::to_string(stage));
        config.zero_stage = stage;
        expect_same(trained(config, ranks, 3), expected);
      }
    }
  }
}

TEST_F(FrozenTest, HomesUpdateTimesAndTypesChangeNoBit) {
  for (const DType type : {DType::BF16, DType::F32}) {
    EngineConfig config = on(TierKind::Host);
    config.param_type = type;
    config.adamw.max_grad_norm = 0;
    config.micro_batches = 2;
    const Values expected = put_back(config, 1, 3);
    for (const TierKind home : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
      for (const bool overlap : {false, true}) {
        for (const bool delay : {false, true}) {
          for (const std::uint64_t recomputed : {0, 100}) {
            SCOPED_TRACE(std::string(name_of(home)) + std::to_string(overlap) + std::to_string(delay));
            EngineConfig other = on(home);
            other.param_type = type;
            other.adamw.max_grad_norm = 0;
            other.micro_batches = 2;
            other.overlap_update = overlap;
            other.delay_update = delay;
            other.recomputed_layers = recomputed;
            expect_same(trained(other, 1, 3), expected);
          }
        }
      }
    }
  }
}

TEST_F(FrozenTest, TiedEmbeddingsAreFrozenForBothUses) {
  test::write_tiny_model(model(), R"(, "tie_word_embeddings": true)");
  for (const Names& frozen : {Names{"model.embed_tokens"}, Names{"model.layers.0.", "model.norm"}}) {
    EngineConfig config = on(TierKind::Host, frozen);
    config.adamw.max_grad_norm = 0;
    config.micro_batches = 2;
    for (const std::size_t ranks : {1, 2}) expect_same(trained(config, ranks, 3), put_back(config, ranks, 3));
  }
}

TEST_F(FrozenTest, TheNormIsThatOfWhatIsTrained) {
  EngineConfig config = on(TierKind::Host);
  config.param_type = DType::F32;
  const std::unique_ptr<Engine> engine = Engine::create(config);
  const double norm = test::train_tiny(*engine, 1).front().grad_norm;
  double squares = 0;
  for (const std::string& name : test::tiny_parameter_names(*engine)) {
    if (is_frozen(config.frozen_parameters, name)) continue;
    for (const float value : engine->get("gradient", name)) squares += static_cast<double>(value) * value;
  }
  EXPECT_NEAR(norm, std::sqrt(squares), 1e-5 * norm);
  EXPECT_GT(norm, 0);
}

// Volumes and peaks equal the plan, and frozen groups add parameters to it and nothing else.
TEST_F(FrozenTest, RunsHoldAndSendWhatThePlanSays) {
  for (const Names& frozen : kFrozen) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const std::size_t ranks : {1, 2}) {
        for (const auto& [micro_batches, accumulation] :
             {std::pair{1, Accumulation::Auto}, {3, Accumulation::Horizontal}, {3, Accumulation::Vertical}}) {
          SCOPED_TRACE(frozen.front() + ", stage " + std::to_string(stage) + ", " + std::to_string(ranks) + " ranks, " +
                       std::to_string(micro_batches) + " micro-batches");
          EngineConfig config = on(TierKind::Host, frozen);
          config.zero_stage = stage;
          config.micro_batches = micro_batches;
          config.accumulation = accumulation;
          test::run_engines(config, ranks, [&](Engine& engine) {
            step(engine);
            engine.wait();
            const std::uint64_t before = engine.sent().all;
            step(engine);
            step(engine);
            engine.wait();
            const MemoryPlan& plan = engine.memory_plan();
            EXPECT_EQ(engine.sent().all - before, 2 * plan.sent_per_step.all);
            EXPECT_EQ(engine.peak_bytes()[1], plan.need[1]);
            EXPECT_LE(engine.peak_bytes()[0], plan.need[0]);
          });
        }
      }
    }
  }
}

std::uint64_t row(const MemoryPlan& plan, const std::string& what) {
  for (const PlanRow& row : plan.rows) {
    if (row.what == what) return row.bytes[0] + row.bytes[1] + row.bytes[2];
  }
  return 0;
}

TEST_F(FrozenTest, ThePlanHasNeitherGradientsNorStatesOfThem) {
  EngineConfig config = on(TierKind::Host, {});
  config.delay_update = true;  // a home per gradient
  const MemoryPlan all = Engine::plan(config);
  config.frozen_parameters = {"model.layers.0."};
  const MemoryPlan some = Engine::plan(config);
  const std::uint64_t numel = all.divisions[1].updated.numel;
  EXPECT_EQ(row(some, "parameters"), row(all, "parameters"));
  EXPECT_EQ(row(all, "gradients") - row(some, "gradients"), 2 * numel);
  EXPECT_EQ(row(all, "optimizer states") - row(some, "optimizer states"), 12 * numel);
  EXPECT_LT(some.whole_states_bytes, all.whole_states_bytes);
  EXPECT_LT(some.link_per_step, all.link_per_step);
}

TEST_F(FrozenTest, OnADriveTheyAreReadAndNeverWritten) {
  test::write_tiny_model(model(), {}, 12);
  EngineConfig config = on(TierKind::Nvme, {"model.embed_tokens", "model.layers"});
  config.host_budget = std::uint64_t{6} << 20;  // pages for a part of it
  const std::unique_ptr<Engine> engine = Engine::create(config);
  test::train_tiny(*engine, 1);
  engine->wait();
  const std::uint64_t before = engine->nvme_written();
  EXPECT_GT(test::train_tiny(*engine, 3).back().nvme_read, 0U);
  engine->wait();
  const MemoryPlan& plan = engine->memory_plan();
  const std::uint64_t head = plan.divisions.back().updated.numel;
  EXPECT_LE(engine->nvme_written() - before, 3 * ((2 + 12) * head + 4 * kPageBytes)) << "weight and states";
}

TEST_F(FrozenTest, CheckpointsHoldThemAndContinueToTheSameBitsOnAnyHomeAndNumberOfRanks) {
  const std::filesystem::path output = folder_.path() / "output";
  for (const auto& [type, master] : {std::pair{DType::BF16, MasterEncoding::Fp32},
                                     {DType::BF16, MasterEncoding::Remainder},
                                     {DType::F32, MasterEncoding::Fp32}}) {
    EngineConfig config = on(TierKind::Host);
    config.param_type = type;
    config.optimizer.master = master;
    const Values expected = trained(config, 1, 4);
    std::filesystem::path checkpoint;
    {
      const std::unique_ptr<Engine> engine = Engine::create(config);
      for (int i = 0; i < 2; ++i) step(*engine);
      TrainerState state;
      state.run = engine->state();
      checkpoint = save_checkpoint(*engine, state, output, 0);
    }
    const hf::TensorCatalog catalog = hf::TensorCatalog::open_file(checkpoint / "states.safetensors");
    const std::string kind = type == DType::F32 ? "master." : "param.";
    const hf::TensorInfo* const embedding = catalog.find(kind + "model.embed_tokens.weight");
    ASSERT_NE(embedding, nullptr);
    EXPECT_EQ(embedding->dtype, type);
    EXPECT_EQ(catalog.find("exp_avg.model.embed_tokens.weight"), nullptr);
    for (const TierKind home : {TierKind::Device, TierKind::Nvme}) {
      EngineConfig other = on(home);
      other.param_type = type;
      other.optimizer.master = master;
      other.seed = 7;  // other weights, which the checkpoint must replace
      const std::unique_ptr<Engine> engine = Engine::create(other);
      load_checkpoint(*engine, checkpoint);
      for (int i = 0; i < 2; ++i) step(*engine);
      expect_same(parameters(*engine), expected);
    }
    config.seed = 7;
    test::run_engines(config, 2, [&](Engine& engine) {
      load_checkpoint(engine, checkpoint);
      const Values loaded = parameters(engine);
      for (const auto& [name, values] : loaded) {
        if (!is_frozen(config.frozen_parameters, name)) continue;
        EXPECT_TRUE(values == expected.at(name)) << name;
      }
    });
  }
}

TEST_F(FrozenTest, ARunMayFreezeMoreThanItsCheckpointAndNotLess) {
  const std::filesystem::path output = folder_.path() / "output";
  const auto save = [&](const EngineConfig& config) {
    const std::unique_ptr<Engine> engine = Engine::create(config);
    step(*engine);
    TrainerState state;
    state.run = engine->state();
    const std::filesystem::path checkpoint = save_checkpoint(*engine, state, output, 0);
    return std::pair(checkpoint, parameters(*engine));
  };
  for (const DType type : {DType::BF16, DType::F32}) {
    EngineConfig all = on(TierKind::Host, {}), some = on(TierKind::Host);
    all.param_type = some.param_type = type;
    auto [checkpoint, weights] = save(all);
    round_frozen(weights, some.frozen_parameters, type);
    {
      some.seed = 7;
      const std::unique_ptr<Engine> engine = Engine::create(some);
      load_checkpoint(*engine, checkpoint);
      expect_same(parameters(*engine), weights);
      step(*engine);
    }
    const std::filesystem::path frozen = save(some).first;
    const std::unique_ptr<Engine> engine = Engine::create(all);
    try {
      load_checkpoint(*engine, frozen);
      FAIL() << "accepted";
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr("exp_avg.model.embed_tokens.weight"));
      EXPECT_THAT(error.what(), HasSubstr("was frozen (frozen_parameters)"));
    }
  }
}

TEST_F(FrozenTest, ExportsHoldThem) {
  const std::unique_ptr<Engine> engine = Engine::create(on(TierKind::Host));
  step(*engine);
  engine->export_model(folder_.path() / "exported");
  const hf::TensorCatalog catalog = hf::TensorCatalog::open_folder(folder_.path() / "exported");
  for (const std::string& name : test::tiny_parameter_names(*engine)) EXPECT_NE(catalog.find(name), nullptr) << name;
}

TEST_F(FrozenTest, HaveAParameterThatIsReadAndSetAndNothingElse) {
  const std::string name = "model.embed_tokens.weight";
  const std::unique_ptr<Engine> engine = Engine::create(on(TierKind::Host));
  step(*engine);
  const auto refusal = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  std::vector<float> values = engine->parameter(name);
  EXPECT_THAT(refusal([&] { engine->get("gradient", name); }), HasSubstr(name + " is frozen"));
  EXPECT_THAT(refusal([&] { engine->get("exp_avg", name); }), HasSubstr("it has no exp_avg"));
  EXPECT_THAT(refusal([&] { engine->set("exp_avg", name, values); }), HasSubstr("it has no exp_avg"));
  for (float& value : values) value = 0.5F;
  engine->set("parameter", name, values);
  step(*engine);
  EXPECT_EQ(engine->parameter(name), values);
}

TEST_F(FrozenTest, WhatCannotBeFrozenIsRefused) {
  const auto refusal = [&](const Names& frozen) -> std::string {
    try {
      (void)Engine::plan(on(TierKind::Host, frozen));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal({"model", "lm_head"}), HasSubstr("nothing is left to train"));
  EXPECT_THAT(refusal({"model.layers.0.mlp"}), HasSubstr("a part of model.layers.0 only"));
  EXPECT_THAT(refusal({"model.layers.2"}), HasSubstr("no parameter of the model begins with 'model.layers.2'"));
  EngineConfig config = on(TierKind::Host, {"model", "lm_head"});
  config.training = false;
  EXPECT_NO_THROW((void)Engine::plan(config)) << "nothing is trained anyway";
}

}  // namespace
}  // namespace strata::engine
