// Engines that are ranks of one run, as threads: stages, homes, volumes, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "comm/thread_ranks.h"
#include "core/error.h"
#include "core/parallel.h"
#include "cpu_adam/cpu_shard_math.h"
#include "engine/tiny_run.h"
#include "support/temp_dir.h"

namespace strata::engine {
namespace {

using offload::TierKind;

using Comms = std::vector<std::shared_ptr<Communicator>>;

Comms thread_ranks(std::size_t world, ShardMath& math) {
  Comms comms;
  for (auto& comm : comm::make_thread_ranks(world, math)) comms.push_back(std::move(comm));
  return comms;
}

// Runs fn(engine, rank) on `world` ranks, in nodes of `per_node` where that is given. Failures of any rank are in
// `errors`, by rank.
struct Ranks {
  Ranks(const EngineConfig& config, std::size_t world, const std::function<void(Engine&, std::size_t)>& fn,
        const std::function<void(EngineConfig&, std::size_t)>& adjust = {}, std::size_t per_node = 0)
      : errors(world) {
    const std::unique_ptr<Parallel> pool = make_thread_pool(1);
    cpu_adam::CpuShardMath math(*pool);
    const Comms all = thread_ranks(world, math);
    std::vector<Comms> nodes, places;
    for (std::size_t n = 0; per_node > 0 && n < world / per_node; ++n) nodes.push_back(thread_ranks(per_node, math));
    for (std::size_t l = 0; l < per_node; ++l) places.push_back(thread_ranks(world / per_node, math));
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < world; ++r) {
      threads.emplace_back([&, r] {
        EngineConfig own = config;
        own.comm = all[r];
        if (per_node > 0) {
          own.node_comm = nodes[r / per_node][r % per_node];
          own.across_comm = places[r % per_node][r / per_node];
        }
        if (adjust) adjust(own, r);
        try {
          const std::unique_ptr<Engine> engine = Engine::create(own);
          fn(*engine, r);
        } catch (const std::exception& error) {
          errors[r] = error.what();
          abort_communicators(own, std::current_exception());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void expect_none() const {
    for (std::size_t r = 0; r < errors.size(); ++r) EXPECT_EQ(errors[r], "") << "rank " << r;
  }
  std::vector<std::string> errors;
};

// Micro-batch m of rank r is number m N + r of the step's global batch.
std::vector<StepSummary> train(Engine& engine, int steps) {
  std::vector<StepSummary> summaries;
  const Communicator& comm = engine.communicator();
  for (int i = 0; i < steps; ++i) {
    std::vector<data::Batch> batches;
    for (std::int64_t m = 0; m < engine.config().micro_batches; ++m) {
      const std::uint64_t number = static_cast<std::uint64_t>(m) * comm.world() + comm.rank();
      batches.push_back(test::tiny_batch(100 * static_cast<std::uint64_t>(engine.state().step) + number));
    }
    summaries.push_back(engine.train_step(batches, 1e-2));
  }
  return summaries;
}

// Two steps, after one that warms up, send on every link what the plan says, and take the host memory that it says.
void expect_planned(Engine& engine) {
  train(engine, 1);
  engine.wait();
  const SentBytes before = engine.sent();
  train(engine, 2);
  engine.wait();  // the update under the next forward is gathered by that
  const SentBytes sent = engine.sent() - before;
  const SentBytes planned = engine.memory_plan().sent_per_step * 2;
  EXPECT_EQ(sent.all, planned.all);
  EXPECT_EQ(sent.node, planned.node);
  EXPECT_EQ(sent.across, planned.across);
  EXPECT_EQ(engine.peak_bytes()[1], engine.memory_plan().need[1]);
  EXPECT_LE(engine.peak_bytes()[0], engine.memory_plan().need[0]);
}

// Losses and norms of all steps; each rank must report the same.
std::vector<double> curve(const EngineConfig& config, std::size_t world, int steps = 4, std::size_t per_node = 0) {
  std::vector<std::vector<double>> curves(world);
  const auto run = [&](Engine& engine, std::size_t rank) {
    for (const StepSummary& summary : train(engine, steps)) {
      curves[rank].push_back(summary.loss);
      curves[rank].push_back(summary.grad_norm);
    }
  };
  const Ranks ranks(config, world, run, {}, per_node);
  ranks.expect_none();
  for (const std::vector<double>& other : curves) EXPECT_EQ(other, curves.front());
  return curves.front();
}

class RanksTest : public ::testing::Test {
 protected:
  RanksTest() { test::write_tiny_model(model()); }
  std::filesystem::path model() const { return folder_.path() / "model"; }
  EngineConfig on(TierKind home) const {
    EngineConfig config = test::tiny_engine_on(home, model(), folder_.path());
    config.device_budget = config.host_budget = std::uint64_t{256} << 20;
    config.nvme_budget = std::uint64_t{256} << 20;
    return config;
  }
  test::TempDir folder_;
};

TEST_F(RanksTest, EveryStageAndHomeGivesTheSameBits) {
  for (const std::size_t world : {2, 3}) {
    const std::vector<double> reference = curve(on(TierKind::Device), world);
    for (int stage = 0; stage <= 3; ++stage) {
      for (const TierKind home : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
        EngineConfig config = on(home);
        config.zero_stage = stage;
        if (stage < 3 && home == TierKind::Nvme) config.param_home = TierKind::Host;
        EXPECT_EQ(curve(config, world), reference) << world << " ranks, stage " << stage << ", on " << name_of(home);
      }
    }
  }
}

TEST_F(RanksTest, UpdateSitesAndTimesAndSmallGroupsThatStayWholeGiveTheSameBits) {
  EngineConfig config = on(TierKind::Host);
  config.adamw.max_grad_norm = 0;
  const std::vector<double> reference = curve(config, 2);
  for (const bool overlap : {false, true}) {
    for (const UpdateSite site : {UpdateSite::Host, UpdateSite::Streamed}) {
      for (const std::uint64_t threshold : {0, 20000}) {  // more than the embedding has
        config.overlap_update = overlap;
        config.update_site = site;
        config.persistence_threshold = threshold;
        EXPECT_EQ(curve(config, 2), reference) << overlap << static_cast<int>(site) << threshold;
      }
    }
  }
}

TEST_F(RanksTest, RankIndependentSumsGiveTheSameBitsOnAnyNumberOfRanks) {
  EngineConfig config = on(TierKind::Host);
  config.param_type = DType::F32;
  config.rank_independent_sums = true;
  config.accumulation = Accumulation::Horizontal;
  config.micro_batches = 12;
  const std::vector<double> one = curve(config, 1, 3);
  for (const std::size_t world : {2, 3, 4}) {
    config.micro_batches = static_cast<std::int64_t>(12 / world);
    for (const int stage : {1, 2, 3}) {
      config.zero_stage = stage;
      EXPECT_EQ(curve(config, world, 3), one) << world << " ranks, stage " << stage;
    }
  }
}

// Where the plan chooses the order of micro-batches too.
TEST_F(RanksTest, RankIndependentSumsTrainOnOneRankInAnyOrder) {
  EngineConfig config = on(TierKind::Host);
  config.param_type = DType::F32;
  config.micro_batches = 4;
  const std::vector<double> plain = curve(config, 1, 2);
  config.rank_independent_sums = true;
  EXPECT_EQ(curve(config, 1, 2), plain);
  config.accumulation = Accumulation::Vertical;
  EXPECT_EQ(curve(config, 1, 2), plain);
}

TEST_F(RanksTest, RankIndependentSumsAreRefusedWhereTheyCannotHold) {
  EngineConfig config = on(TierKind::Host);
  config.rank_independent_sums = true;
  EXPECT_THROW(Engine::plan(config), ConfigError) << "bf16";
  config.param_type = DType::F32;
  EXPECT_NO_THROW(Engine::plan(config));
  test::write_tiny_model(folder_.path() / "tied", R"(, "tie_word_embeddings": true)");
  config.model = folder_.path() / "tied";
  EXPECT_THROW(Engine::plan(config), ConfigError);
}

// NUM-21: the same global batch on 1, 2 and 3 ranks, in every stage; sums in another order differ in the last bits.
TEST_F(RanksTest, TheGlobalBatchDecidesTheLossNotTheNumberOfRanks) {
  EngineConfig config = on(TierKind::Host);
  config.param_type = DType::F32;
  config.micro_batches = 6;
  const std::vector<double> one = curve(config, 1, 20);
  for (const std::size_t world : {2, 3}) {
    config.micro_batches = static_cast<std::int64_t>(6 / world);
    for (int stage = 0; stage <= 3; ++stage) {
      config.zero_stage = stage;
      const std::vector<double> several = curve(config, world, 20);
      for (std::size_t i = 0; i < one.size(); ++i) {
        const double tolerance = i % 2 == 0 ? 2e-5 : 5e-3;  // of losses, of norms
        EXPECT_NEAR(several[i], one[i], tolerance * one[i]) << world << " ranks, stage " << stage << ", value " << i;
      }
    }
  }
}

// What is held and sent equals the plan, and the plan the formulas of docs/distributed.md.
TEST_F(RanksTest, HoldAndSendWhatThePlanSays) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const std::size_t world : {1, 2, 3, 4}) {
      for (const auto& [micro_batches, accumulation] :
           {std::pair{1, Accumulation::Auto}, {3, Accumulation::Horizontal}, {3, Accumulation::Vertical}}) {
        SCOPED_TRACE("stage " + std::to_string(stage) + ", " + std::to_string(world) + " ranks, " +
                     std::to_string(micro_batches) + " micro-batches");
        EngineConfig config = on(TierKind::Host);
        config.zero_stage = stage;
        config.micro_batches = micro_batches;
        config.accumulation = accumulation;
        const Ranks ranks(config, world, [](Engine& engine, std::size_t) { expect_planned(engine); });
        ranks.expect_none();
      }
    }
  }
}

// Every layer that stays gathered saves one of its two gathers; head and embedding have one anyway.
TEST_F(RanksTest, HeldLayersAreGatheredOnceAndChangeNoBit) {
  for (const TierKind home : {TierKind::Host, TierKind::Nvme}) {
    EngineConfig config = on(home);
    config.held_layers = 0;
    const std::vector<double> reference = curve(config, 2);
    std::vector<std::uint64_t> sent;
    for (const std::uint64_t layers : {0, 1, 2, 3, 4}) {
      config.held_layers = layers;
      EXPECT_EQ(curve(config, 2), reference) << layers << " layers";
      const Ranks ranks(config, 2, [&](Engine& engine, std::size_t rank) {
        train(engine, 2);
        engine.wait();
        EXPECT_EQ(engine.sent().all, 2 * engine.memory_plan().sent_per_step.all);
        if (rank == 0) sent.push_back(engine.memory_plan().sent_per_step.all);
      });
      ranks.expect_none();
    }
    EXPECT_EQ(sent[1], sent[0]) << "the head has one visit";
    EXPECT_LT(sent[2], sent[1]);
    EXPECT_EQ(sent[1] - sent[2], sent[2] - sent[3]) << "two equal blocks";
    EXPECT_EQ(sent[4], sent[3]) << "the embedding is gathered once";
    config.held_layers.reset();
    const Ranks ranks(
        config, 2, [&](Engine& engine, std::size_t) { EXPECT_EQ(engine.memory_plan().held_layers, 4U) << "all fit"; });
    ranks.expect_none();
  }
}

// The model divided inside each of two nodes: all copies stay the same, in every stage and on every home.
TEST_F(RanksTest, HybridShardingGivesTheSameBitsInEveryStageAndOnEveryNode) {
  EngineConfig config = on(TierKind::Host);
  const std::vector<double> flat = curve(config, 4);
  config.shard_within_node = true;
  const std::vector<double> reference = curve(config, 4, 4, 2);
  for (std::size_t i = 0; i < flat.size(); ++i) EXPECT_NEAR(reference[i], flat[i], 2e-2 * flat[i]) << i;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const TierKind home : {TierKind::Device, TierKind::Nvme}) {
      EngineConfig other = on(home);
      other.shard_within_node = true;
      other.zero_stage = stage;
      if (stage < 3 && home == TierKind::Nvme) other.param_home = TierKind::Host;
      EXPECT_EQ(curve(other, 4, 4, 2), reference) << "stage " << stage << " on " << name_of(home);
    }
  }
  std::vector<std::vector<std::uint32_t>> bits(4);
  const auto run = [&](Engine& engine, std::size_t rank) {
    train(engine, 3);
    bits[rank] = test::tiny_parameter_bits(engine);
    engine.export_model(folder_.path() / "exported");
  };
  const Ranks ranks(config, 4, run, {}, 2);
  ranks.expect_none();
  for (const std::vector<std::uint32_t>& other : bits) EXPECT_EQ(other, bits.front());
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "exported" / "model.safetensors"));
}

// Of three nodes the rows are cut in three.
TEST_F(RanksTest, HybridShardingWorksOnThreeNodes) {
  EngineConfig config = on(TierKind::Host);
  config.shard_within_node = true;
  const std::vector<double> nodes = curve(config, 6, 3, 2);
  config.shard_within_node = false;
  const std::vector<double> flat = curve(config, 6, 3);
  for (std::size_t i = 0; i < flat.size(); ++i) EXPECT_NEAR(nodes[i], flat[i], 2e-2 * flat[i]) << i;
}

struct LinkCase {
  const char* name;
  SlowLinks links;
  bool within_node = false;
  double tolerance = 0;  // of losses, relative
};

// Volumes by link, exactly; the secondary partition changes nothing else, the others little.
TEST_F(RanksTest, SavingsOfSlowLinksSendWhatThePlanSays) {
  const std::vector<LinkCase> cases{
      {"plain", {}, false, 0},
      {"node partition", {.node_partition = true}, false, 0},
      {"int8 weights", {.weights = BlockCode::Int8}, false, 2e-2},
      {"int8 gradients", {.gradients = BlockCode::Int8}, false, 2e-2},
      {"int4 gradients", {.gradients = BlockCode::Int4}, false, 5e-2},
      {"two hops", {.two_hops = true}, false, 2e-2},
      {"all", {BlockCode::Int8, BlockCode::Int4, true, true}, false, 5e-2},
      {"within nodes", {}, true, 2e-2},
      {"within nodes, int8 gradients", {.gradients = BlockCode::Int8}, true, 2e-2},
  };
  for (const TierKind home : {TierKind::Host, TierKind::Device}) {
    EngineConfig config = on(home);
    config.held_layers = 0;
    config.micro_batches = 2;
    const std::vector<double> plain = curve(config, 4, 4, 2);
    std::map<std::string, SentBytes> sent;
    for (const LinkCase& c : cases) {
      SCOPED_TRACE(c.name);
      config.slow_links = c.links;
      config.shard_within_node = c.within_node;
      const std::vector<double> other = curve(config, 4, 4, 2);
      for (std::size_t i = 0; i < plain.size(); i += 2) {
        EXPECT_NEAR(other[i], plain[i], c.tolerance * plain[i]) << i;
      }
      const auto run = [&](Engine& engine, std::size_t rank) {
        expect_planned(engine);
        if (rank == 0) sent[c.name] = engine.memory_plan().sent_per_step;
      };
      const Ranks ranks(config, 4, run, {}, 2);
      ranks.expect_none();
    }
    // Half of what a hop to another node takes, and 1/64 for the scales.
    EXPECT_LT(sent["all"].across, sent["two hops"].across / 2);
    EXPECT_LT(sent["node partition"].all, sent["plain"].all);
    EXPECT_EQ(sent["node partition"].all + sent["node partition"].node * 3 / 2, sent["plain"].all)
        << "a gather among four sends three quarters, inside a node of two a half";
    EXPECT_LT(sent["int4 gradients"].all, sent["int8 gradients"].all);
  }
}

// Of a frozen layer a node keeps what it has gathered for the whole run.
TEST_F(RanksTest, FrozenLayersAreGatheredInsideTheirNodeAlone) {
  for (const bool node_partition : {false, true}) {
    EngineConfig config = on(TierKind::Host);
    config.held_layers = 0;
    config.frozen_parameters = {"model.layers.1"};
    config.slow_links.node_partition = node_partition;
    const Ranks ranks(
        config, 4, [](Engine& engine, std::size_t) { expect_planned(engine); }, {}, 2);
    ranks.expect_none();
  }
}

TEST_F(RanksTest, WhatDoesNotGoTogetherIsRefused) {
  const auto refused = [&](const std::function<void(EngineConfig&)>& change, std::size_t per_node) {
    EngineConfig config = on(TierKind::Host);
    change(config);
    const Ranks ranks(
        config, 4, [](Engine&, std::size_t) { ADD_FAILURE() << "must be refused"; }, {}, per_node);
    return ranks.errors.front();
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(refused([](EngineConfig& c) { c.slow_links.two_hops = true; }, 0), HasSubstr("strata.ranks_per_node"));
  EXPECT_THAT(refused([](EngineConfig& c) { c.shard_within_node = true; }, 1), HasSubstr("strata.ranks_per_node"));
  EXPECT_THAT(refused([](EngineConfig& c) { c.shard_within_node = c.slow_links.two_hops = true; }, 2),
              HasSubstr("gathers inside a node anyway"));
  EXPECT_THAT(refused([](EngineConfig& c) { c.slow_links.weights = BlockCode::Int4; }, 0), HasSubstr("int8"));
  EXPECT_THAT(refused(
                  [](EngineConfig& c) {
                    c.slow_links.weights = BlockCode::Int8;
                    c.persistence_threshold = 1000;
                  },
                  0),
              HasSubstr("strata.persistence_threshold"));
  EXPECT_THAT(refused(
                  [](EngineConfig& c) {
                    c.slow_links.node_partition = true;
                    c.param_home = TierKind::Nvme;
                    c.nvme_paths = {"/tmp"};
                    c.nvme_budget = 64 << 20;
                  },
                  2),
              HasSubstr("strata.slow_links.node_partition"));
  EXPECT_THAT(refused(
                  [](EngineConfig& c) {
                    c.slow_links.weights = BlockCode::Int8;
                    c.zero_stage = 2;
                  },
                  0),
              HasSubstr("strata.zero_stage: 3"));
  EXPECT_THAT(refused(
                  [](EngineConfig& c) {
                    c.slow_links.node_partition = true;
                    c.zero_stage = 1;
                  },
                  2),
              HasSubstr("strata.zero_stage: 3"));
  EXPECT_THAT(refused(
                  [](EngineConfig& c) {
                    c.rank_independent_sums = true;
                    c.slow_links.gradients = BlockCode::Int8;
                  },
                  0),
              HasSubstr("rank_independent_sums"));
}

TEST_F(RanksTest, RefuseParametersOnNvmeBelowStageThree) {
  for (const int stage : {0, 1, 2}) {
    EngineConfig config = on(TierKind::Nvme);
    config.zero_stage = stage;
    const Ranks ranks(config, 2, [](Engine&, std::size_t) { ADD_FAILURE() << "must be refused"; });
    for (const std::string& error : ranks.errors) {
      EXPECT_NE(error.find("strata.placement.param: nvme on 2 ranks needs strata.zero_stage: 3"), std::string::npos)
          << error;
    }
  }
}

TEST_F(RanksTest, RefuseToTrainTogetherWithOtherSettings) {
  const Ranks ranks(
      on(TierKind::Host), 3, [](Engine&, std::size_t) { ADD_FAILURE() << "must be refused"; },
      [](EngineConfig& config, std::size_t rank) {
        if (rank == 1) config.adamw.weight_decay = 0.2;
        if (rank == 2) config.zero_stage = 2;
      });
  for (const std::string& error : ranks.errors) {
    EXPECT_NE(error.find("rank 1 differs from rank 0 in the settings"), std::string::npos) << error;
    EXPECT_NE(error.find("rank 2 differs from rank 0 in the memory plan"), std::string::npos) << error;
  }
}

// NUM-23: a gradient that is not finite on one rank makes all skip.
TEST_F(RanksTest, SkipTogether) {
  for (int stage = 0; stage <= 3; ++stage) {
    EngineConfig config = on(TierKind::Host);
    config.zero_stage = stage;
    config.param_type = DType::F16;
    config.loss_scale = LossScaleConfig{0, 65536.0 * 65536 * 65536, 1, 2000};
    std::vector<std::vector<StepSummary>> summaries(2);
    const Ranks ranks(config, 2, [&](Engine& engine, std::size_t rank) { summaries[rank] = train(engine, 2); });
    ranks.expect_none();
    for (const std::vector<StepSummary>& rank : summaries) {
      ASSERT_EQ(rank.size(), 2U);
      EXPECT_TRUE(rank[0].skipped && rank[1].skipped) << "stage " << stage;
    }
  }
}

}  // namespace
}  // namespace strata::engine
