// Checkpoints and exported models of several ranks: what one rank would write, and what any number of them reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>

#include "core/error.h"
#include "core/local_communicator.h"
#include "engine/checkpoint.h"
#include "engine/tiny_ranks.h"
#include "engine/tiny_run.h"
#include "support/small_mount.h"
#include "support/temp_dir.h"

namespace strata::engine {
namespace {

namespace fs = std::filesystem;
using offload::TierKind;
using test::run_engines;
using test::train_tiny;
using ::testing::HasSubstr;

std::string bytes_of_file(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  EXPECT_TRUE(in.good()) << file;
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Every rank on its own part of the same global batch.
void train_ranks(Engine& engine, int steps, double learning_rate) {
  const Communicator& comm = engine.communicator();
  for (int i = 0; i < steps; ++i) {
    const auto step = static_cast<std::uint64_t>(engine.state().step);
    const std::vector<data::Batch> batch{test::tiny_batch(100 * step + comm.rank())};
    engine.train_step(batch, learning_rate);
  }
}

class RankFilesTest : public testing::Test {
 protected:
  RankFilesTest() { test::write_tiny_model(model()); }

  fs::path model() const { return folder_.path() / "model"; }
  fs::path output() const { return folder_.path() / "output"; }
  EngineConfig config(TierKind home = TierKind::Nvme, const OptimizerConfig& optimizer = {}) const {
    EngineConfig config = test::tiny_engine_on(home, model(), folder_.path());
    config.optimizer = optimizer;
    return config;
  }
  static TrainerState state_of(const Engine& engine) {
    return {.run = engine.state(), .sampler = {1, 2}, .epoch = 1.5, .seed = 9, .history = {}};
  }

  test::TempDir folder_;
};

constexpr OptimizerConfig kOptimizers[] = {
    {OptimizerKind::AdamW, MasterEncoding::Fp32, MomentEncoding::Fp32},
    {OptimizerKind::AdamW, MasterEncoding::Remainder, MomentEncoding::Block8},
    {OptimizerKind::Lion, MasterEncoding::Fp32, MomentEncoding::Bf16},
};

// CK-01: a checkpoint could not be resumed with another number of ranks.
TEST_F(RankFilesTest, ACheckpointOfAnyRanksIsWrittenAgainTheSameByAnyOthers) {
  for (const OptimizerConfig& optimizer : kOptimizers) {
    for (const std::size_t from : {1, 2, 3}) {
      SCOPED_TRACE(std::to_string(from) + " ranks, " + std::string(name_of(optimizer.kind)));
      fs::path first;
      run_engines(config(TierKind::Nvme, optimizer), from, [&](Engine& engine) {
        train_ranks(engine, 2, 1e-2);
        const fs::path folder = save_checkpoint(engine, state_of(engine), output(), 0);
        if (engine.communicator().rank() == 0) first = folder;
      });
      EXPECT_NO_THROW(check_checkpoint(first));
      const std::string states = bytes_of_file(first / "states.safetensors");
      for (const std::size_t to : {1, 2, 3}) {
        EngineConfig other = config(to == 2 ? TierKind::Host : TierKind::Device, optimizer);
        other.seed = 7;  // other weights, which the checkpoint must replace
        const fs::path again = folder_.path() / ("again-" + std::to_string(to));
        run_engines(other, to, [&](Engine& engine) {
          const TrainerState loaded = load_checkpoint(engine, first);
          EXPECT_EQ(loaded.run.step, 2);
          EXPECT_EQ(loaded.sampler.position, 2u);
          save_checkpoint(engine, loaded, again, 0);
        });
        EXPECT_TRUE(bytes_of_file(again / "checkpoint-2" / "states.safetensors") == states) << "on " << to << " ranks";
      }
    }
  }
}

TEST_F(RankFilesTest, ACheckpointOfAnyStageContinuesInAnyOther) {
  const std::vector<data::Batch> batch{test::tiny_batch(77)};
  const auto next_losses = [&](Engine& engine) {
    std::vector<double> losses;
    for (int i = 0; i < 3; ++i) losses.push_back(engine.train_step(batch, 1e-2).loss);
    return losses;
  };
  EngineConfig first = config(TierKind::Host);
  first.param_type = DType::F32;
  std::vector<double> uninterrupted(3);
  run_engines(first, 2, [&](Engine& engine) {
    train_ranks(engine, 2, 1e-2);
    save_checkpoint(engine, state_of(engine), output(), 0);
    const std::vector<double> losses = next_losses(engine);
    if (engine.communicator().rank() == 0) uninterrupted = losses;
  });
  const std::string states = bytes_of_file(output() / "checkpoint-2" / "states.safetensors");
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    EngineConfig other = first;
    other.zero_stage = stage;
    other.seed = 7;
    const fs::path again = folder_.path() / ("stage-" + std::to_string(stage));
    run_engines(other, 2, [&](Engine& engine) {
      save_checkpoint(engine, load_checkpoint(engine, output() / "checkpoint-2"), again, 0);
      EXPECT_EQ(next_losses(engine), uninterrupted);
    });
    EXPECT_TRUE(bytes_of_file(again / "checkpoint-2" / "states.safetensors") == states);
  }
}

TEST_F(RankFilesTest, AllFilesOfACheckpointAreThoseOfOneRankButForTheRanksInTheManifest) {
  for (const std::size_t ranks : {1, 3}) {
    run_engines(config(), ranks, [&](Engine& engine) {
      save_checkpoint(engine, state_of(engine), folder_.path() / std::to_string(ranks), 0);
    });
  }
  std::vector<std::string> differing;
  for (const auto& entry : fs::directory_iterator(folder_.path() / "1" / "checkpoint-0")) {
    const std::string name = entry.path().filename().string();
    const std::string there = bytes_of_file(folder_.path() / "3" / "checkpoint-0" / name);
    if (bytes_of_file(entry.path()) != there) differing.push_back(name);
  }
  EXPECT_THAT(differing, testing::ElementsAre("strata.json"));
}

// CK-05: the exported model was incomplete.
TEST_F(RankFilesTest, AnExportWithoutLearningIsTheInputBitForBit) {
  EngineConfig from_files = config();
  from_files.random_weights = false;
  from_files.model = folder_.path() / "input";
  Engine::create(config())->export_model(from_files.model);
  for (const std::size_t ranks : {1, 2, 3}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    const fs::path exported = folder_.path() / ("exported-" + std::to_string(ranks));
    run_engines(from_files, ranks, [&](Engine& engine) {
      train_ranks(engine, 2, 0);
      engine.export_model(exported);
    });
    std::set<std::string> names, expected;
    for (const auto& entry : fs::directory_iterator(exported)) names.insert(entry.path().filename().string());
    for (const auto& entry : fs::directory_iterator(from_files.model)) {
      expected.insert(entry.path().filename().string());
      EXPECT_TRUE(bytes_of_file(exported / entry.path().filename()) == bytes_of_file(entry.path())) << entry.path();
    }
    EXPECT_EQ(names, expected);
  }
}

// What save_checkpoint throws on every rank where rank `alone` is given another folder than the others.
std::vector<std::string> refusals(const EngineConfig& config, std::size_t ranks, std::size_t alone,
                                  const fs::path& output, const fs::path& elsewhere) {
  std::vector<std::string> texts(ranks);
  run_engines(config, ranks, [&](Engine& engine) {
    const std::size_t rank = engine.communicator().rank();
    try {
      TrainerState state;
      state.run.step = 2;
      save_checkpoint(engine, state, rank == alone ? elsewhere : output, 1);
    } catch (const IoError& error) {
      texts[rank] = error.what();
    }
    train_ranks(engine, 1, 1e-2);  // the run itself goes on
  });
  return texts;
}

TEST_F(RankFilesTest, ARankThatCannotSeeTheFolderFailsTheSaveOnAll) {
  run_engines(config(), 3, [&](Engine& engine) {
    TrainerState state;
    state.run.step = 1;
    save_checkpoint(engine, state, output(), 1);
  });
  for (const std::string& text : refusals(config(), 3, 1, output(), folder_.path() / "elsewhere")) {
    EXPECT_THAT(text, HasSubstr("elsewhere"));
    EXPECT_THAT(text, HasSubstr("output_dir must be on a file system that all ranks share"));
  }
  EXPECT_EQ(newest_checkpoint(output()), output() / "checkpoint-1");
  EXPECT_FALSE(fs::exists(output() / ".tmp-checkpoint-2"));
}

TEST_F(RankFilesTest, WhereTheFirstRankCannotMakeTheFolderAllSaySo) {
  const fs::path below_a_file = model() / "config.json" / "output";
  for (const std::string& text : refusals(config(), 2, 0, output(), below_a_file)) {
    EXPECT_THAT(text, HasSubstr("save a checkpoint"));
    EXPECT_THAT(text, HasSubstr("config.json"));
  }
}

TEST_F(RankFilesTest, AFullDiskLeavesEarlierCheckpointsIntact) {
  const test::SmallMount mount = test::SmallMount::memory("tmpfs", "size=4m");
  if (!mount.mounted()) GTEST_SKIP() << mount.reason();
  const fs::path full = mount.path() / "output";
  run_engines(config(), 2, [&](Engine& engine) {
    TrainerState state;
    state.run.step = 1;
    const fs::path first = save_checkpoint(engine, state, full, 1);
    state.run.step = 2;
    EXPECT_THROW(save_checkpoint(engine, state, full, 1), IoError);
    engine.communicator().barrier();
    EXPECT_EQ(newest_checkpoint(engine.communicator(), full), first);
  });
  EXPECT_FALSE(fs::exists(full / ".tmp-checkpoint-2"));
}

TEST_F(RankFilesTest, RanksAgreeOnTheNewestCheckpoint) {
  LocalCommunicator alone;
  EXPECT_EQ(newest_checkpoint(alone, output()), std::nullopt);
  run_engines(config(), 2, [&](Engine& engine) {
    Communicator& comm = engine.communicator();
    EXPECT_EQ(newest_checkpoint(comm, output()), std::nullopt);
    save_checkpoint(engine, state_of(engine), output(), 0);
    EXPECT_EQ(newest_checkpoint(comm, output()), output() / "checkpoint-0");
    try {
      (void)newest_checkpoint(comm, comm.rank() == 1 ? folder_.path() / "elsewhere" : output());
      ADD_FAILURE() << "accepted";
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr("elsewhere/checkpoint-0: rank 0 sees this checkpoint"));
    }
  });
}

TEST_F(RankFilesTest, ACheckpointThatLacksWhatIsNeededIsRefusedOnAllRanks) {
  fs::path saved;
  run_engines(config(), 1, [&](Engine& engine) { saved = save_checkpoint(engine, state_of(engine), output(), 0); });
  fs::remove(saved / "trainer_state.json");
  run_engines(config(), 2, [&](Engine& engine) { EXPECT_THROW(load_checkpoint(engine, saved), DataError); });
}

}  // namespace
}  // namespace strata::engine
