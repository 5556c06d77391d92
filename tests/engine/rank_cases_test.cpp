// What goes wrong elsewhere when several ranks train: one that has nothing to learn, a gradient that is not finite on
// one, evaluations in between, clipping. The model is wide enough that four ranks have a part of every group.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "engine/checkpoint.h"
#include "engine/ruin_row.h"
#include "engine/tiny_ranks.h"
#include "engine/tiny_run.h"
#include "support/temp_dir.h"

namespace strata::engine {
namespace {

namespace fs = std::filesystem;
using offload::TierKind;
using test::run_engines;

constexpr std::int64_t kBadToken = test::kTinyVocabulary - 1;  // in no batch but the bad one

// The micro-batches of a rank: number m N + r of a global batch of `count`.
std::vector<data::Batch> batches_for(const Communicator& comm, std::uint64_t step, std::size_t count) {
  std::vector<data::Batch> batches;
  for (std::size_t number = comm.rank(); number < count; number += comm.world()) {
    batches.push_back(test::tiny_batch(100 * step + number));
    for (std::int64_t& token : batches.back().tokens) token %= kBadToken;
    for (std::int64_t& label : batches.back().labels) label = label < 0 ? label : label % kBadToken;
  }
  return batches;
}

data::Batch without_targets(data::Batch batch) {
  batch.labels.assign(batch.labels.size(), -100);
  batch.target_tokens = 0;
  return batch;
}

std::string states_of(Engine& engine, const fs::path& folder) {
  if (engine.communicator().rank() == 0) fs::create_directories(folder);
  engine.communicator().barrier();
  engine.save_states(folder);
  engine.communicator().barrier();
  std::ifstream in(folder / "states.safetensors", std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

class RankCases : public testing::Test {
 protected:
  RankCases() {
    for (const bool tied : {false, true}) write_wide_model(model(tied), tied);
  }
  // 1021 * 256 elements of the embedding are four rows of 65536, the last of which is padded.
  static void write_wide_model(const fs::path& folder, bool tied) {
    fs::create_directories(folder);
    std::ofstream out(folder / "config.json");
    out << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1021, "hidden_size": 256,
  "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
  "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16", "tie_word_embeddings": )"
        << (tied ? "true" : "false") << "}\n";
  }
  fs::path model(bool tied) const { return folder_.path() / (tied ? "tied" : "untied"); }
  EngineConfig on(TierKind home, bool tied = false) const {
    EngineConfig config = test::tiny_engine_on(home, model(tied), folder_.path());
    config.device_budget = config.host_budget = config.nvme_budget = std::uint64_t{256} << 20;
    config.param_type = DType::F32;
    return config;
  }

  test::TempDir folder_;
};

// The global batch counts, though a rank's part of it has no target.
TEST_F(RankCases, ARankWhoseBatchIsFullyMaskedTakesPart) {  // DI-01
  for (const int stage : {0, 1, 2, 3}) {
    EngineConfig config = on(TierKind::Host);
    config.zero_stage = stage;
    const auto losses_on = [&](std::size_t ranks) {
      config.micro_batches = static_cast<std::int64_t>(2 / ranks);
      std::vector<double> losses;
      run_engines(config, ranks, [&](Engine& engine) {
        for (std::uint64_t step = 0; step < 3; ++step) {
          std::vector<data::Batch> batches = batches_for(engine.communicator(), step, 2);
          if (batches.size() == 2 || engine.communicator().rank() == 1)
            batches.back() = without_targets(batches.back());
          const StepSummary summary = engine.train_step(batches, 1e-2);
          EXPECT_FALSE(summary.skipped);
          if (engine.communicator().rank() == 0) losses.push_back(summary.loss);
        }
      });
      return losses;
    };
    const std::vector<double> one = losses_on(1);
    const std::vector<double> two = losses_on(2);
    EXPECT_LT(one.back(), one.front());
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(two[i], one[i], 1e-5 * one[i]) << "stage " << stage;
  }
}

// NUM-23, NUM-27: a row of the embedding that only rank 1's batch uses is infinite. All ranks skip; nothing has
// changed, in any tier, and the next good step is that of a run which never tried.
TEST_F(RankCases, AGradientThatIsNotFiniteOnOneRankChangesNothingAnywhere) {
  const fs::path ruined = folder_.path() / "ruined";
  EngineConfig plain = on(TierKind::Host);
  plain.param_type = DType::BF16;
  Engine::create(plain)->export_model(ruined);
  test::ruin_row(ruined, kBadToken);
  for (const TierKind home : {TierKind::Host, TierKind::Nvme}) {
    SCOPED_TRACE(std::string(name_of(home)));
    EngineConfig config = on(home);
    config.param_type = DType::BF16;
    config.random_weights = false;
    config.model = ruined;
    std::vector<double> losses[2];
    for (const bool tries : {false, true}) {
      run_engines(config, 2, [&](Engine& engine) {
        const std::size_t rank = engine.communicator().rank();
        const auto good = [&](std::uint64_t number) {
          const StepSummary summary = engine.train_step(batches_for(engine.communicator(), number, 2), 1e-2);
          EXPECT_FALSE(summary.skipped);
          if (rank == 0) losses[tries].insert(losses[tries].end(), {summary.loss, summary.grad_norm});
        };
        good(0);
        good(1);
        if (tries) {
          const std::string before = states_of(engine, folder_.path() / "before");
          std::vector<data::Batch> bad = batches_for(engine.communicator(), 7, 2);
          if (rank == 1) bad[0].tokens[3] = kBadToken;
          for (int i = 0; i < 2; ++i) EXPECT_TRUE(engine.train_step(bad, 1e-2).skipped) << "rank " << rank;
          EXPECT_EQ(engine.state().skipped, 2);
          EXPECT_EQ(engine.state().step, 2);
          EXPECT_TRUE(states_of(engine, folder_.path() / "after") == before) << "states have changed";
        }
        good(2);
        good(3);
      });
    }
    EXPECT_EQ(losses[1], losses[0]);
    EXPECT_EQ(losses[0].size(), 8U);
  }
}

// DI-14: evaluations of another length between steps, tied weights, recomputed activations, any depth of prefetch.
TEST_F(RankCases, EvaluationsInBetweenChangeNothingAtAnyPrefetchDepth) {
  const auto run = [&](std::optional<std::uint64_t> depth, bool evaluates, std::vector<double>& evaluations) {
    EngineConfig config = on(TierKind::Nvme, true);
    config.param_type = DType::BF16;
    config.recomputed_layers = 2;
    if (depth) config.look_ahead_bytes = *depth * *config.slot_bytes;
    std::vector<double> losses;
    run_engines(config, 2, [&](Engine& engine) {
      const std::size_t rank = engine.communicator().rank();
      for (std::uint64_t step = 0; step < 6; ++step) {
        const double loss = engine.train_step(batches_for(engine.communicator(), step, 2), 1e-2).loss;
        if (rank == 0) losses.push_back(loss);
        if (!evaluates || step % 2 == 0) continue;
        for (const std::int64_t tokens : {5, 16}) {
          const double sum = engine.evaluate(test::tiny_batch(1000 + rank, tokens)).loss_sum;
          if (rank == 0) evaluations.push_back(sum);
        }
      }
    });
    return losses;
  };
  std::vector<double> none, expected;
  const std::vector<double> alone = run(std::nullopt, false, none);
  EXPECT_LT(alone.back(), alone.front());
  for (const std::uint64_t depth : {1, 4, 64}) {
    std::vector<double> evaluations;
    EXPECT_EQ(run(depth, true, evaluations), alone) << depth << " pages ahead";
    if (expected.empty()) expected = evaluations;
    EXPECT_EQ(evaluations, expected) << depth << " pages ahead";
    EXPECT_EQ(evaluations.size(), 6U);
  }
}

// NUM-03, NUM-07, NUM-08: clipped steps over several micro-batches are those of one rank, in every tier.
TEST_F(RankCases, ClippingSeesTheNormOfAllRanksInEveryTier) {
  for (const double limit : {0.1, 1e-3}) {
    const auto curve = [&](TierKind home, std::size_t ranks) {
      EngineConfig config = on(home);
      config.adamw.max_grad_norm = limit;
      config.micro_batches = static_cast<std::int64_t>(6 / ranks);
      std::vector<double> numbers;
      run_engines(config, ranks, [&](Engine& engine) {
        for (std::uint64_t step = 0; step < 4; ++step) {
          const StepSummary summary = engine.train_step(batches_for(engine.communicator(), step, 6), 0.05);
          if (engine.communicator().rank() == 0) numbers.insert(numbers.end(), {summary.loss, summary.grad_norm});
        }
      });
      return numbers;
    };
    const std::vector<double> one = curve(TierKind::Device, 1);
    EXPECT_GT(one[1], limit) << "nothing to clip";
    for (const std::size_t ranks : {1, 2, 3}) {
      const std::vector<double> reference = curve(TierKind::Device, ranks);
      for (const TierKind home : {TierKind::Host, TierKind::Nvme}) {
        EXPECT_EQ(curve(home, ranks), reference) << ranks << " ranks on " << name_of(home) << ", limit " << limit;
      }
      for (std::size_t i = 0; i < one.size(); ++i) {
        EXPECT_NEAR(reference[i], one[i], (i % 2 == 0 ? 1e-4 : 1e-2) * one[i]) << ranks << " ranks, value " << i;
      }
    }
  }
}

// CK-01, DI-12 where every rank holds something: the tiny model of other tests lies in the first rows.
TEST_F(RankCases, StatesOfFourRanksAreWrittenAndReadByAnyOthers) {
  std::string four;
  run_engines(on(TierKind::Nvme), 4, [&](Engine& engine) {
    engine.train_step(batches_for(engine.communicator(), 0, 4), 1e-2);
    save_checkpoint(engine, {.run = engine.state(), .sampler = {}, .epoch = 0, .seed = 1, .history = {}},
                    folder_.path() / "four", 0);
  });
  for (const std::size_t ranks : {1, 2, 3, 4}) {
    EngineConfig other = on(TierKind::Host);
    other.seed = 7;
    run_engines(other, ranks, [&](Engine& engine) {
      load_checkpoint(engine, folder_.path() / "four" / "checkpoint-1");
      const std::string again = states_of(engine, folder_.path() / std::to_string(ranks));
      if (four.empty()) four = again;  // of one rank, which is alone
      EXPECT_TRUE(again == four) << ranks << " ranks";
    });
  }
  std::ifstream in(folder_.path() / "four" / "checkpoint-1" / "states.safetensors", std::ios::binary);
  EXPECT_TRUE(std::string(std::istreambuf_iterator<char>(in), {}) == four);
}

}  // namespace
}  // namespace strata::engine
