#include "engine/trainer.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "data/token_bytes.h"
#include "engine/tiny_run.h"
#include "offload/shard_store.h"
#include "support/small_mount.h"
#include "support/temp_dir.h"

namespace strata::engine {
namespace {

using test::tiny_parameter_bits;

// Samples of unequal lengths; the first tokens of each are a prompt that is not learnt.
std::vector<test::SampleBytes> samples(std::uint32_t highest = test::kTinyVocabulary - 1) {
  std::vector<test::SampleBytes> result;
  for (std::uint32_t s = 0; s < 7; ++s) {
    test::SampleBytes sample;
    for (std::uint32_t i = 0; i < 6 + s; ++i) {
      sample.tokens.push_back((17 * s + 5 * i) % highest);
      sample.trained.push_back(i >= 3 ? 1 : 0);
    }
    result.push_back(sample);
  }
  result.back().tokens.back() = highest;
  return result;
}

class TrainerTest : public testing::Test {
 protected:
  TrainerTest() {
    test::write_tiny_model(folder_.path() / "model");
    run_.output_dir = folder_.path() / "output";
    run_.max_seq_length = test::kTinyTokens;
    run_.per_device_train_batch_size = 2;
    run_.max_steps = 6;
    run_.save_steps = 0;
    run_.learning_rate = 1e-2;
  }
  std::unique_ptr<Engine> engine(std::uint64_t seed = 42) const {
    EngineConfig config = test::tiny_engine(folder_.path() / "model");
    config.micro_batches = run_.gradient_accumulation_steps;
    config.seed = seed;
    return Engine::create(config);
  }

  test::TempDir folder_;
  const test::TemporaryTokenFile file_{samples()};
  const data::TokenFile data_ = data::TokenFile::open(file_.path());
  RunConfig run_;
};

TEST_F(TrainerTest, ReportsEveryStepAndEndsWithACheckpoint) {
  const std::unique_ptr<Engine> trained = engine();
  std::vector<StepReport> reports;
  TrainerEvents events;
  events.on_step = [&](const StepReport& report) { reports.push_back(report); };
  const TrainResult result = Trainer(*trained, run_, data_, nullptr, events).run();
  EXPECT_EQ(result.end, TrainResult::End::Finished);
  EXPECT_EQ(result.steps, 6);
  EXPECT_EQ(result.checkpoint, run_.output_dir / "checkpoint-6");
  EXPECT_EQ(newest_checkpoint(run_.output_dir), result.checkpoint);
  ASSERT_EQ(reports.size(), 6u);
  for (std::size_t i = 0; i < reports.size(); ++i) {
    EXPECT_EQ(reports[i].step, static_cast<std::int64_t>(i + 1));
    EXPECT_EQ(reports[i].total_steps, 6);
    EXPECT_GT(reports[i].tokens, 0u);
  }
  EXPECT_LT(reports.back().loss, reports.front().loss);
}

TEST_F(TrainerTest, ResumesAStoppedRunToTheBitsOfAnUninterruptedOne) {
  run_.gradient_accumulation_steps = 2;
  std::vector<std::uint32_t> uninterrupted;
  {
    const std::unique_ptr<Engine> trained = engine();
    Trainer(*trained, run_, data_, nullptr, {}).run();
    uninterrupted = tiny_parameter_bits(*trained);
  }
  run_.output_dir = folder_.path() / "interrupted";
  {
    const std::unique_ptr<Engine> trained = engine();
    TrainerEvents events;
    events.stop_requested = [&] { return trained->state().step == 3; };
    const TrainResult result = Trainer(*trained, run_, data_, nullptr, events).run();
    EXPECT_EQ(result.end, TrainResult::End::Stopped);
    EXPECT_EQ(result.steps, 3);
    EXPECT_EQ(result.checkpoint, run_.output_dir / "checkpoint-3");
  }
  const std::unique_ptr<Engine> resumed = engine(/*seed=*/7);
  Trainer trainer(*resumed, run_, data_, nullptr, {});
  trainer.resume(run_.output_dir / "checkpoint-3");
  EXPECT_EQ(trainer.run().steps, 6);
  EXPECT_TRUE(tiny_parameter_bits(*resumed) == uninterrupted);
}

TEST_F(TrainerTest, SavesAndEvaluatesAtItsIntervals) {
  run_.save_steps = 2;
  run_.eval_steps = 3;
  run_.save_total_limit = 2;
  const std::unique_ptr<Engine> trained = engine();
  std::vector<std::int64_t> evaluated;
  TrainerEvents events;
  events.on_evaluation = [&](const EvalReport& report) {
    evaluated.push_back(report.step);
    EXPECT_EQ(report.tokens, data_.trained_tokens());
  };
  const TrainResult result = Trainer(*trained, run_, data_, &data_, events).run();
  EXPECT_EQ(evaluated, (std::vector<std::int64_t>{0, 3, 6}));
  EXPECT_EQ(checkpoint_steps(run_.output_dir), (std::vector<std::int64_t>{4, 6}));
  ASSERT_TRUE(result.first_eval_loss && result.last_eval_loss);
  EXPECT_LT(*result.last_eval_loss, *result.first_eval_loss);
}

TEST_F(TrainerTest, AsksForTheRoomThatItsStatesNeed) {
  constexpr std::uint64_t kHeaders = 64 << 10;  // of files, and what is written in JSON
  for (const OptimizerConfig& optimizer :
       {OptimizerConfig{}, OptimizerConfig{OptimizerKind::AdamW, MasterEncoding::Remainder, MomentEncoding::Block8},
        OptimizerConfig{OptimizerKind::Sgd, MasterEncoding::Remainder, MomentEncoding::Fp32}}) {
    EngineConfig config = test::tiny_engine(folder_.path() / "model");
    config.optimizer = optimizer;
    const std::unique_ptr<Engine> trained = Engine::create(config);
    run_.output_dir = folder_.path() / ("output-" + std::to_string(bytes_to_save(*trained)));
    run_.max_steps = 1;
    Trainer(*trained, run_, data_, nullptr, {}).run();
    trained->export_model(run_.output_dir / "model");
    std::uint64_t saved = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(run_.output_dir)) {
      if (entry.is_regular_file()) saved += entry.file_size();
    }
    EXPECT_LE(saved, bytes_to_save(*trained) + kHeaders);
    EXPECT_GE(saved, bytes_to_save(*trained) / 2);
  }
}

TEST_F(TrainerTest, SavesNothingAndNeedsNoRoomWhenTold) {
  run_.save_strategy = SaveStrategy::No;
  run_.save_steps = 2;
  const std::unique_ptr<Engine> trained = engine();
  {
    const TrainResult result = Trainer(*trained, run_, data_, nullptr, {}).run();
    EXPECT_EQ(result.steps, 6);
    EXPECT_TRUE(result.checkpoint.empty());
    EXPECT_FALSE(std::filesystem::exists(run_.output_dir));
  }
  const test::SmallMount small = test::SmallMount::memory("tmpfs", "size=64k");
  if (!small.mounted()) GTEST_SKIP() << small.reason();
  run_.output_dir = small.path();
  EXPECT_EQ(Trainer(*trained, run_, data_, nullptr, {}).run().steps, 6);
  run_.save_strategy = SaveStrategy::Steps;
  EXPECT_THROW(Trainer(*trained, run_, data_, nullptr, {}), OutOfBudget);
}

// States on a drive with the fewest pages, so that every step writes.
class WearTest : public TrainerTest {
 protected:
  std::unique_ptr<Engine> engine_on_drive() const {
    EngineConfig config = test::tiny_engine(folder_.path() / "model");
    config.nvme_paths = {folder_.path()};
    config.param_home = config.optimizer_home = offload::TierKind::Nvme;
    config.grad_home = offload::TierKind::Host;
    std::uint64_t fixed = 0;
    for (const PlanRow& row : Engine::plan(config).rows) {
      if (row.what != "pages (staging and cache)") fixed += row.bytes[1];
    }
    config.slot_bytes = 256 << 10;
    config.host_budget = fixed + offload::ShardStore::kMinSlots * *config.slot_bytes;
    return Engine::create(config);
  }
};

TEST_F(WearTest, ARunThatWouldPassTheLimitIsRefusedBeforeItsFirstStep) {
  const std::unique_ptr<Engine> trained = engine_on_drive();
  ASSERT_GT(trained->memory_plan().nvme_written_per_step, 0U);
  run_.strata.nvme.wear_limit = trained->nvme_written() + 3 * trained->memory_plan().nvme_written_per_step;
  EXPECT_THROW(Trainer(*trained, run_, data_, nullptr, {}).run(), OutOfBudget);
  EXPECT_EQ(trained->state().step, 0);
}

TEST_F(WearTest, ARunThatWritesMoreThanPlannedStopsBeforeTheLimitWithACheckpoint) {
  const std::unique_ptr<Engine> trained = engine_on_drive();
  run_.max_steps = 50;
  run_.strata.nvme.wear_limit = trained->nvme_written() + 50 * trained->memory_plan().nvme_written_per_step;
  TrainerEvents events;
  events.on_step = [&](const StepReport&) { test::train_tiny(*trained, 20); };  // writes that no plan knows of
  const TrainResult result = Trainer(*trained, run_, data_, nullptr, events).run();
  EXPECT_EQ(result.end, TrainResult::End::WearLimit);
  EXPECT_LT(result.steps, 50);
  EXPECT_EQ(newest_checkpoint(run_.output_dir), result.checkpoint);
}

TEST_F(WearTest, ForecastsFromThePlanAndThenFromWhatWasMeasured) {
  run_.strata.nvme.rated_writes = 1'000'000'000'000;
  run_.max_steps = 3;
  const std::unique_ptr<Engine> trained = engine_on_drive();
  std::vector<std::string> forecasts;
  TrainerEvents events;
  events.on_message = [&](const std::string& text) {
    if (text.starts_with("drives: ")) forecasts.push_back(text);
  };
  events.on_step = [&](const StepReport& report) {
    EXPECT_GT(report.nvme_written_total, 0U);
    EXPECT_LE(report.nvme_written_total, trained->nvme_written()) << "an update may be writing";
  };
  Trainer(*trained, run_, data_, nullptr, events).run();
  ASSERT_EQ(forecasts.size(), 2U);
  EXPECT_NE(forecasts[0].find("of the rated 1 TB"), std::string::npos) << forecasts[0];
  EXPECT_EQ(forecasts[0].find("without a pause"), std::string::npos);
  EXPECT_NE(forecasts[1].find("without a pause"), std::string::npos) << forecasts[1];
}

TEST_F(TrainerTest, TurnsEpochsIntoSteps) {
  run_.max_steps = -1;
  run_.num_train_epochs = 3;
  const std::unique_ptr<Engine> trained = engine();
  EXPECT_EQ(Trainer(*trained, run_, data_, nullptr, {}).total_steps(), 12);  // 7 samples are 4 batches of up to 2
}

TEST_F(TrainerTest, RefusesTokensThatTheModelDoesNotHave) {
  const test::TemporaryTokenFile file(samples(test::kTinyVocabulary));
  const data::TokenFile foreign = data::TokenFile::open(file.path());
  const std::unique_ptr<Engine> trained = engine();
  EXPECT_THROW(Trainer(*trained, run_, foreign, nullptr, {}), DataError);
  EXPECT_THROW(Trainer(*trained, run_, data_, &foreign, {}), DataError);
}

TEST_F(TrainerTest, RefusesDataOfWhichNothingIsLearnt) {
  std::vector<test::SampleBytes> masked = samples();
  for (test::SampleBytes& sample : masked) sample.trained.assign(sample.tokens.size(), 0);
  const test::TemporaryTokenFile file(masked);
  const data::TokenFile prompts = data::TokenFile::open(file.path());
  const std::unique_ptr<Engine> trained = engine();
  EXPECT_THROW(Trainer(*trained, run_, prompts, nullptr, {}), DataError);
}

}  // namespace
}  // namespace strata::engine
