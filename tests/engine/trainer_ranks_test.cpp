// The trainer on several ranks: the same schedule, the same losses, one end for all.
#include <gtest/gtest.h>

#include <mutex>

#include "core/error.h"
#include "data/token_bytes.h"
#include "engine/tiny_ranks.h"
#include "engine/tiny_run.h"
#include "engine/trainer.h"
#include "support/temp_dir.h"

namespace strata::engine {
namespace {

namespace fs = std::filesystem;
using test::run_engines;

std::vector<test::SampleBytes> samples(std::uint32_t count) {
  std::vector<test::SampleBytes> result;
  for (std::uint32_t s = 0; s < count; ++s) {
    test::SampleBytes sample;
    for (std::uint32_t i = 0; i < 4 + s % 9; ++i) {
      sample.tokens.push_back((17 * s + 5 * i) % test::kTinyVocabulary);
      sample.trained.push_back(i >= 2 ? 1 : 0);
    }
    result.push_back(sample);
  }
  return result;
}

// A run on some ranks, as each of them saw it.
struct Seen {
  std::vector<StepReport> steps;
  std::vector<EvalReport> evaluations;
  TrainResult result;
};

class TrainerRanksTest : public testing::Test {
 protected:
  TrainerRanksTest() {
    test::write_tiny_model(folder_.path() / "model");
    run_.output_dir = folder_.path() / "output";
    run_.max_seq_length = test::kTinyTokens;
    run_.per_device_train_batch_size = run_.per_device_eval_batch_size = 2;
    run_.max_steps = 8;
    run_.save_steps = 0;
    run_.learning_rate = 1e-2;
  }
  EngineConfig config() const {
    EngineConfig config = test::tiny_engine(folder_.path() / "model");
    config.rank_independent_sums = rank_independent_sums_;
    config.param_type = DType::F32;  // sums of ranks round to little
    config.micro_batches = run_.gradient_accumulation_steps;
    return config;
  }
  // All ranks must have seen the same; returns what that was. `prepare(rank, trainer or events)` come from the test.
  Seen train(std::size_t ranks, std::size_t training, std::size_t held_out,
             const std::function<bool(std::size_t rank, const Engine&)>& stop = {}, const fs::path& resume = {}) const {
    const test::TemporaryTokenFile file(samples(static_cast<std::uint32_t>(training)));
    const test::TemporaryTokenFile other(samples(static_cast<std::uint32_t>(std::max<std::size_t>(held_out, 1))));
    const data::TokenFile data = data::TokenFile::open(file.path());
    const data::TokenFile validation = data::TokenFile::open(other.path());
    std::vector<Seen> seen(ranks);
    run_engines(config(), ranks, [&](Engine& engine) {
      const std::size_t rank = engine.communicator().rank();
      TrainerEvents events;
      events.on_step = [&](const StepReport& report) { seen[rank].steps.push_back(report); };
      events.on_evaluation = [&](const EvalReport& report) { seen[rank].evaluations.push_back(report); };
      if (stop) events.stop_requested = [&] { return stop(rank, engine); };
      Trainer trainer(engine, run_, data, held_out > 0 ? &validation : nullptr, events);
      if (!resume.empty()) trainer.resume(resume);
      seen[rank].result = trainer.run();
    });
    for (const Seen& one : seen) expect_same(one, seen[0]);
    return seen[0];
  }
  static void expect_same(const Seen& a, const Seen& b) {
    EXPECT_EQ(a.result.end, b.result.end);
    ASSERT_EQ(a.steps.size(), b.steps.size());
    ASSERT_EQ(a.evaluations.size(), b.evaluations.size());
    for (std::size_t i = 0; i < a.steps.size(); ++i) {
      EXPECT_EQ(a.steps[i].loss, b.steps[i].loss);
      EXPECT_EQ(a.steps[i].grad_norm, b.steps[i].grad_norm);
      EXPECT_EQ(a.steps[i].learning_rate, b.steps[i].learning_rate);
      EXPECT_EQ(a.steps[i].tokens, b.steps[i].tokens);
    }
    for (std::size_t i = 0; i < a.evaluations.size(); ++i) EXPECT_EQ(a.evaluations[i].loss, b.evaluations[i].loss);
  }
  // The same global batches, whose sums were taken in another order: fp32, a few steps.
  static void expect_near(const Seen& a, const Seen& b, std::size_t from = 0) {
    ASSERT_EQ(a.steps.size() + from, b.steps.size());
    for (std::size_t i = 0; i < a.steps.size(); ++i) {
      const StepReport& other = b.steps[from + i];
      EXPECT_EQ(a.steps[i].step, other.step);
      EXPECT_NEAR(a.steps[i].loss, other.loss, 1e-4 * other.loss) << "step " << other.step;
      EXPECT_NEAR(a.steps[i].grad_norm, other.grad_norm, 1e-3 * other.grad_norm) << "step " << other.step;
      EXPECT_EQ(a.steps[i].tokens, other.tokens);
      EXPECT_EQ(a.steps[i].learning_rate, other.learning_rate);
      EXPECT_EQ(a.steps[i].epoch, other.epoch);
    }
  }

  test::TempDir folder_;
  RunConfig run_;
  bool rank_independent_sums_ = false;
};

// CK-01: 2 to 3, 3 to 1 and 1 to 2 ranks, six micro-batches a step; epochs end within.
TEST_F(TrainerRanksTest, ARunContinuesOnAnotherNumberOfRanks) {
  constexpr std::pair<std::size_t, std::size_t> kChanges[] = {{2, 3}, {3, 1}, {1, 2}};
  for (const auto& [from, to] : kChanges) {
    SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to) + " ranks");
    run_.gradient_accumulation_steps = static_cast<std::int64_t>(6 / from);
    run_.output_dir = folder_.path() / ("whole-" + std::to_string(from));
    const Seen uninterrupted = train(from, 31, 0);
    run_.output_dir = folder_.path() / ("stopped-" + std::to_string(from));
    const Seen stopped = train(from, 31, 0, [](std::size_t, const Engine& engine) { return engine.state().step == 3; });
    EXPECT_EQ(stopped.result.end, TrainResult::End::Stopped);
    run_.gradient_accumulation_steps = static_cast<std::int64_t>(6 / to);
    const Seen resumed = train(to, 31, 0, {}, stopped.result.checkpoint);
    EXPECT_EQ(resumed.steps.size(), 5u);
    expect_near(resumed, uninterrupted, 3);
  }
}

TEST_F(TrainerRanksTest, WithSumsThatDoNotDependOnTheRanksItContinuesBitForBit) {
  rank_independent_sums_ = true;
  run_.gradient_accumulation_steps = 6;
  const Seen uninterrupted = train(1, 31, 0);
  run_.output_dir = folder_.path() / "stopped";
  run_.gradient_accumulation_steps = 3;
  const Seen stopped = train(2, 31, 0, [](std::size_t, const Engine& engine) { return engine.state().step == 3; });
  run_.gradient_accumulation_steps = 2;
  const Seen resumed = train(3, 31, 0, {}, stopped.result.checkpoint);
  ASSERT_EQ(stopped.steps.size() + resumed.steps.size(), uninterrupted.steps.size());
  for (std::size_t i = 0; i < uninterrupted.steps.size(); ++i) {
    const StepReport& step = i < 3 ? stopped.steps[i] : resumed.steps[i - 3];
    EXPECT_EQ(step.loss, uninterrupted.steps[i].loss) << "step " << i;
    EXPECT_EQ(step.grad_norm, uninterrupted.steps[i].grad_norm) << "step " << i;
  }
}

// DI-15: the schedule moved as many times a step as there were ranks.
TEST_F(TrainerRanksTest, TheLearningRateOfAnUpdateDoesNotDependOnTheRanks) {
  run_.max_steps = 20;
  run_.save_strategy = SaveStrategy::No;
  run_.lr_scheduler_type = LrKind::Cosine;
  for (const std::int64_t accumulation : {1, 2}) {
    run_.gradient_accumulation_steps = accumulation;
    std::vector<double> rates;
    for (const std::size_t ranks : {1, 2}) {
      const Seen seen = train(ranks, 31, 0);
      ASSERT_EQ(seen.steps.size(), 20u);
      for (std::size_t i = 0; i < 20; ++i) {
        if (ranks == 1) rates.push_back(seen.steps[i].learning_rate);
        EXPECT_EQ(seen.steps[i].learning_rate, rates[i]) << "step " << i;
      }
    }
    EXPECT_NE(rates.front(), rates.back());
  }
}

// DI-01, DI-02: a rank without samples, and unequal numbers of batches, ended in a hang.
TEST_F(TrainerRanksTest, EveryRankTakesPartThoughItHasNoSamples) {
  run_.save_strategy = SaveStrategy::No;
  run_.eval_steps = 2;
  for (const std::size_t training : {7, 2}) {
    for (const std::size_t ranks : {2, 3}) {
      SCOPED_TRACE(std::to_string(training) + " samples, " + std::to_string(ranks) + " ranks");
      run_.gradient_accumulation_steps = 1;
      const Seen seen = train(ranks, training, 5);
      ASSERT_EQ(seen.steps.size(), 8u);
      // One rank with as many micro-batches adds up the same.
      run_.gradient_accumulation_steps = static_cast<std::int64_t>(ranks);
      const Seen alone = train(1, training, 5);
      expect_near(seen, alone);
      ASSERT_EQ(seen.evaluations.size(), 5u);
      for (std::size_t i = 0; i < seen.evaluations.size(); ++i) {
        EXPECT_EQ(seen.evaluations[i].tokens, alone.evaluations[i].tokens);
        EXPECT_NEAR(seen.evaluations[i].loss, alone.evaluations[i].loss, 1e-4);
      }
    }
  }
}

TEST_F(TrainerRanksTest, EpochsAreOfGlobalBatches) {
  run_.save_strategy = SaveStrategy::No;
  run_.max_steps = -1;
  run_.num_train_epochs = 3;
  for (const std::size_t ranks : {1, 2, 3}) {
    const Seen seen = train(ranks, 7, 0);
    const std::size_t per_epoch = ranks == 1 ? 4 : 2;  // 7 samples in batches of 2, 4 and 6
    EXPECT_EQ(seen.steps.size(), 3 * per_epoch) << ranks << " ranks";
    EXPECT_EQ(seen.steps.back().epoch, 3.0);
  }
}

TEST_F(TrainerRanksTest, OneRankThatIsAskedToStopStopsAllAfterTheSameStep) {
  const Seen seen =
      train(3, 31, 0, [](std::size_t rank, const Engine& engine) { return rank == 2 && engine.state().step == 4; });
  EXPECT_EQ(seen.result.end, TrainResult::End::Stopped);
  EXPECT_EQ(seen.steps.size(), 4u);
  EXPECT_EQ(seen.result.checkpoint, run_.output_dir / "checkpoint-4");
  EXPECT_NO_THROW(check_checkpoint(seen.result.checkpoint));
}

// CK-10: ranks raced to delete the same old checkpoint.
TEST_F(TrainerRanksTest, SavingAndDeletingAtEveryStepLeavesTheLast) {
  run_.max_steps = 50;
  run_.save_steps = 1;
  run_.save_total_limit = 1;
  const Seen seen = train(3, 31, 0);
  EXPECT_EQ(seen.steps.size(), 50u);
  EXPECT_EQ(checkpoint_steps(run_.output_dir), std::vector<std::int64_t>{50});
  EXPECT_NO_THROW(check_checkpoint(run_.output_dir / "checkpoint-50"));
}

TEST_F(TrainerRanksTest, DataThatOneRankRefusesIsRefusedByAll) {
  const test::TemporaryTokenFile good(samples(7));
  std::vector<test::SampleBytes> masked = samples(7);
  for (test::SampleBytes& sample : masked) sample.trained.assign(sample.tokens.size(), 0);
  const test::TemporaryTokenFile bad(masked);
  run_engines(config(), 3, [&](Engine& engine) {
    const data::TokenFile data = data::TokenFile::open(engine.communicator().rank() == 1 ? bad.path() : good.path());
    EXPECT_THROW(Trainer(engine, run_, data, nullptr, {}), DataError);
  });
}

}  // namespace
}  // namespace strata::engine
