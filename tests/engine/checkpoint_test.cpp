#include "engine/checkpoint.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "core/error.h"
#include "engine/tiny_run.h"
#include "support/small_mount.h"
#include "support/temp_dir.h"

namespace strata::engine {
namespace {

namespace fs = std::filesystem;
using offload::TierKind;
using test::tiny_parameter_bits;
using test::train_tiny;

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() { test::write_tiny_model(folder_.path() / "model"); }

  fs::path output() const { return folder_.path() / "output"; }
  EngineConfig config(TierKind home = TierKind::Device) const {
    EngineConfig config = test::tiny_engine(folder_.path() / "model");
    config.optimizer_home = home;
    config.param_home = home;
    config.nvme_paths = {folder_.path()};
    config.nvme_budget = std::uint64_t{64} << 20;
    return config;
  }
  static TrainerState state_at(std::int64_t step) {
    TrainerState state;
    state.run = {step, 2};
    state.sampler = {3, 14};
    state.epoch = 3.25;
    state.seed = 99;
    state.history = {{1, 0.5, 5.25, 1e-3, 2.5}, {2, 1.0, 4.75, 2e-3, 1.5}};
    return state;
  }
  fs::path save(Engine& engine, std::int64_t step, std::int64_t keep = 0) const {
    return save_checkpoint(engine, state_at(step), output(), keep);
  }

  test::TempDir folder_;
};

void flip_byte(const fs::path& file, std::uint64_t at) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(at));
  const int byte = stream.get();
  stream.seekp(static_cast<std::streamoff>(at));
  stream.put(static_cast<char>(byte ^ 1));
  ASSERT_TRUE(stream.good()) << file;
}

TEST_F(CheckpointTest, ContinuesToTheBitsOfARunThatWasNotInterrupted) {
  std::vector<std::uint32_t> uninterrupted;
  fs::path checkpoint;
  {
    const std::unique_ptr<Engine> engine = Engine::create(config(TierKind::Nvme));
    train_tiny(*engine, 2);
    TrainerState state = state_at(2);
    state.run = engine->state();
    checkpoint = save_checkpoint(*engine, state, output(), 0);
    train_tiny(*engine, 2);
    uninterrupted = tiny_parameter_bits(*engine);
  }
  for (const TierKind home : {TierKind::Device, TierKind::Host, TierKind::Nvme}) {
    EngineConfig other = config(home);
    other.seed = 7;  // other weights, which the checkpoint must replace
    const std::unique_ptr<Engine> engine = Engine::create(other);
    load_checkpoint(*engine, checkpoint);
    train_tiny(*engine, 2);
    EXPECT_TRUE(tiny_parameter_bits(*engine) == uninterrupted) << name_of(home);
  }
}

TEST_F(CheckpointTest, SaysInWhichOrderGradientsOfTiedEmbeddingsAreAdded) {
  for (const bool tied : {false, true}) {
    test::write_tiny_model(folder_.path() / "model", tied ? R"(, "tie_word_embeddings": true)" : "");
    EngineConfig vertical = config();
    vertical.micro_batches = 2;
    vertical.accumulation = Accumulation::Vertical;
    const std::unique_ptr<Engine> engine = Engine::create(vertical);
    std::ifstream in(save(*engine, tied ? 2 : 1) / "strata.json");
    const std::string manifest((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const std::string expected = tied ? R"("tied_accumulation": "vertical")" : R"("tied_accumulation": "horizontal")";
    EXPECT_NE(manifest.find(expected), std::string::npos) << manifest;
  }
}

TEST_F(CheckpointTest, ContinuesAnFp32Run) {
  EngineConfig fp32 = config();
  fp32.param_type = DType::F32;
  std::vector<std::uint32_t> uninterrupted;
  {
    const std::unique_ptr<Engine> engine = Engine::create(fp32);
    train_tiny(*engine, 1);
    save_checkpoint(*engine, {engine->state(), {}, 0, 0, {}}, output(), 0);
    train_tiny(*engine, 1);
    uninterrupted = tiny_parameter_bits(*engine);
  }
  fp32.seed = 7;
  const std::unique_ptr<Engine> engine = Engine::create(fp32);
  load_checkpoint(*engine, *newest_checkpoint(output()));
  train_tiny(*engine, 1);
  EXPECT_TRUE(tiny_parameter_bits(*engine) == uninterrupted);
}

TEST_F(CheckpointTest, GivesBackTheStateOfTheTrainer) {
  const std::unique_ptr<Engine> engine = Engine::create(config());
  const TrainerState saved = state_at(5);
  const TrainerState loaded = load_checkpoint(*engine, save(*engine, 5));
  EXPECT_EQ(loaded.run.step, 5);
  EXPECT_EQ(loaded.run.skipped, 2);
  EXPECT_EQ(engine->state().step, 5);
  EXPECT_EQ(engine->state().skipped, 2);
  EXPECT_EQ(loaded.sampler.epoch, 3u);
  EXPECT_EQ(loaded.sampler.position, 14u);
  EXPECT_EQ(loaded.epoch, 3.25);
  EXPECT_EQ(loaded.seed, 99u);
  ASSERT_EQ(loaded.history.size(), saved.history.size());
  for (std::size_t i = 0; i < saved.history.size(); ++i) {
    EXPECT_EQ(loaded.history[i].step, saved.history[i].step);
    EXPECT_EQ(loaded.history[i].epoch, saved.history[i].epoch);
    EXPECT_EQ(loaded.history[i].loss, saved.history[i].loss);
    EXPECT_EQ(loaded.history[i].learning_rate, saved.history[i].learning_rate);
    EXPECT_EQ(loaded.history[i].grad_norm, saved.history[i].grad_norm);
  }
}

TEST_F(CheckpointTest, KeepsALossThatIsNoNumberOutOfTheWay) {
  const std::unique_ptr<Engine> engine = Engine::create(config());
  TrainerState state = state_at(5);
  state.history.back().loss = std::numeric_limits<double>::quiet_NaN();
  const TrainerState loaded = load_checkpoint(*engine, save_checkpoint(*engine, state, output(), 0));
  EXPECT_EQ(loaded.history.size(), 2u);
}

TEST_F(CheckpointTest, TakesTheNewestByNumberNotByName) {
  const std::unique_ptr<Engine> engine = Engine::create(config());
  save(*engine, 10);
  save(*engine, 9);
  EXPECT_EQ(checkpoint_steps(output()), (std::vector<std::int64_t>{9, 10}));
  EXPECT_EQ(newest_checkpoint(output()), output() / "checkpoint-10");
}

TEST_F(CheckpointTest, IsAbsentWhereNothingWasSaved) {
  EXPECT_EQ(newest_checkpoint(output()), std::nullopt);
  fs::create_directories(output() / "checkpoint-x");
  fs::create_directories(output() / ".tmp-checkpoint-7");
  EXPECT_EQ(newest_checkpoint(output()), std::nullopt);
}

TEST_F(CheckpointTest, PassesOverWhatIsNotComplete) {
  const std::unique_ptr<Engine> engine = Engine::create(config());
  const fs::path good = save(*engine, 1);
  const auto damaged = [&](const std::string& how, const std::function<void(const fs::path&)>& damage) {
    SCOPED_TRACE(how);
    const fs::path folder = save(*engine, 2);
    EXPECT_EQ(newest_checkpoint(output()), folder);
    damage(folder);
    EXPECT_THROW(check_checkpoint(folder), DataError);
    EXPECT_EQ(newest_checkpoint(output()), good);
  };
  damaged("no manifest", [](const fs::path& folder) { fs::remove(folder / "strata.json"); });
  damaged("empty manifest", [](const fs::path& folder) { fs::resize_file(folder / "strata.json", 0); });
  damaged("half a manifest", [](const fs::path& folder) {
    fs::resize_file(folder / "strata.json", fs::file_size(folder / "strata.json") / 2);
  });
  damaged("truncated states", [](const fs::path& folder) {
    fs::resize_file(folder / "states.safetensors", fs::file_size(folder / "states.safetensors") - 1);
  });
  damaged("flipped bit", [](const fs::path& folder) { flip_byte(folder / "states.safetensors", 300000); });
  damaged("no states", [](const fs::path& folder) { fs::remove(folder / "states.safetensors"); });
  damaged("no trainer state", [](const fs::path& folder) { fs::remove(folder / "trainer_state.json"); });
  damaged("only a folder", [](const fs::path& folder) {
    fs::remove_all(folder);
    fs::create_directory(folder);
  });
}

TEST_F(CheckpointTest, CallsAFlippedBitCorruption) {
  const std::unique_ptr<Engine> engine = Engine::create(config());
  const fs::path folder = save(*engine, 2);
  flip_byte(folder / "states.safetensors", 300000);
  EXPECT_THROW(check_checkpoint(folder), CorruptionError);
}

TEST_F(CheckpointTest, ReplacesWhatAKilledRunLeftBehind) {
  const std::unique_ptr<Engine> engine = Engine::create(config());
  fs::create_directories(output() / ".tmp-checkpoint-3");
  std::ofstream(output() / ".tmp-checkpoint-3" / "half.safetensors") << "torn";
  const fs::path folder = save(*engine, 3);
  EXPECT_FALSE(fs::exists(output() / ".tmp-checkpoint-3"));
  EXPECT_FALSE(fs::exists(folder / "half.safetensors"));
  EXPECT_NO_THROW(check_checkpoint(folder));
}

TEST_F(CheckpointTest, KeepsTheNewestOnes) {
  const std::unique_ptr<Engine> engine = Engine::create(config());
  for (const std::int64_t step : {1, 2, 3, 4}) save(*engine, step, 2);
  EXPECT_EQ(checkpoint_steps(output()), (std::vector<std::int64_t>{3, 4}));
  save(*engine, 5, 0);
  EXPECT_EQ(checkpoint_steps(output()), (std::vector<std::int64_t>{3, 4, 5}));
}

// A run that resumed before a damaged checkpoint, or started anew in an old folder, saves smaller steps than are there.
TEST_F(CheckpointTest, NeverDeletesTheOneJustSaved) {
  const std::unique_ptr<Engine> engine = Engine::create(config());
  save(*engine, 20);
  const fs::path saved = save(*engine, 15, 1);
  EXPECT_NO_THROW(check_checkpoint(saved));
}

TEST_F(CheckpointTest, LeavesEarlierOnesIntactWhenTheDiskIsFull) {
  const test::SmallMount mount = test::SmallMount::memory("tmpfs", "size=4m");
  if (!mount.mounted()) GTEST_SKIP() << mount.reason();
  const fs::path full = mount.path() / "output";
  const std::unique_ptr<Engine> engine = Engine::create(config());
  const fs::path first = save_checkpoint(*engine, state_at(1), full, 1);
  EXPECT_THROW(save_checkpoint(*engine, state_at(2), full, 1), IoError);
  EXPECT_EQ(newest_checkpoint(full), first);
  EXPECT_FALSE(fs::exists(full / ".tmp-checkpoint-2"));
  train_tiny(*engine, 1);  // the run itself goes on
}

TEST_F(CheckpointTest, SaysThatItsFolderCannotBeMade) {
  const std::unique_ptr<Engine> engine = Engine::create(config());
  const fs::path below_a_file = folder_.path() / "model" / "config.json" / "output";
  EXPECT_THROW(save_checkpoint(*engine, state_at(1), below_a_file, 0), IoError);
}

TEST_F(CheckpointTest, RefusesStatesOfAnotherModel) {
  const fs::path folder = save(*Engine::create(config()), 1);
  test::write_tiny_model(folder_.path() / "model", R"(, "attention_bias": true)");
  const std::unique_ptr<Engine> engine = Engine::create(config());
  EXPECT_THROW(load_checkpoint(*engine, folder), DataError);
}

}  // namespace
}  // namespace strata::engine
