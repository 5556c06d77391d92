// Trainer: the loop around an engine: batches, schedule, evaluation, checkpoints, reports.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "data/token_file.h"
#include "engine/checkpoint.h"
#include "engine/drive_wear.h"
#include "engine/engine.h"
#include "engine/run_config.h"
#include "engine/step_report.h"

namespace strata::engine {

// Who listens. All run on the caller's thread, on every rank; any may be empty.
struct TrainerEvents {
  std::function<void(const StepReport&)> on_step;
  std::function<void(const EvalReport&)> on_evaluation;
  std::function<void(const std::string&)> on_message;
  std::function<bool()> stop_requested;  // asked after every step; one rank that says so stops all
};

struct TrainResult {
  // WearLimit: one more step would pass strata.nvme.wear_limit.
  enum class End : std::uint8_t { Finished, Stopped, WearLimit } end = End::Finished;
  std::int64_t steps = 0;            // updates of the whole run, resumed ones included
  std::filesystem::path checkpoint;  // the last one written; empty: none
  std::optional<double> first_eval_loss, last_eval_loss;
};

// What a checkpoint and the exported model take at most: states, weights where they are no rounded masters, and
// exported weights of fp32 at most.
std::uint64_t bytes_to_save(const Engine& engine);

// One thread. References must outlive it. Every rank makes one, from the same configuration and the same files, and
// calls the same functions: schedule, evaluations, checkpoints and ends follow from what is the same on all of them.
class Trainer {
 public:
  // Throws: DataError when a token id does not fit the model's vocabulary or nothing is to be learnt; OutOfBudget when
  // output_dir has no room for one checkpoint and the model, unless nothing is to be saved.
  Trainer(Engine& engine, const RunConfig& config, const data::TokenFile& train, const data::TokenFile* validation,
          TrainerEvents events);

  // Continues from a checkpoint: tensors, step, learning rate, order of the data.
  void resume(const std::filesystem::path& checkpoint);
  // Trains to the end, until a stop is requested, or up to the wear limit; each ends with a checkpoint where
  // any are saved.
  // Throws: OutOfBudget when the planned steps would pass the wear limit.
  TrainResult run();
  std::int64_t total_steps() const { return total_steps_; }

 private:
  // What the ranks must know of each other after a step.
  struct Together {
    bool stop = false;
    std::uint64_t nvme_written = 0;  // since the engines were made
    std::uint64_t written_a_step = 0;
  };
  Together together(std::uint64_t written_a_step, bool stop) const;
  // What the constructor throws for.
  void check() const;
  StepReport report(const StepSummary& summary, double learning_rate, std::uint64_t tokens, double epoch) const;
  double evaluate();
  void save();
  void forecast_wear(std::uint64_t per_step, double step_seconds) const;
  double epoch() const;

  Engine& engine_;
  const RunConfig& config_;
  const data::TokenFile& train_;
  const data::TokenFile* validation_;
  TrainerEvents events_;
  const data::Share share_;  // of a global batch
  data::Sampler sampler_;
  std::int64_t total_steps_ = 0;
  LrSchedule schedule_;
  DriveWear wear_;
  std::uint64_t wear_at_start_ = 0;  // bytes written before the first step of these processes
  std::int64_t first_step_ = 0;
  std::int64_t attempted_ = 0;  // steps, skipped ones included: what max_steps counts
  std::int64_t saved_at_ = -1;
  std::vector<LogEntry> history_;
  TrainResult result_;
};

}  // namespace strata::engine
