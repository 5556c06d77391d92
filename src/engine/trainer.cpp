#include "engine/trainer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "core/bytes.h"
#include "core/error.h"
#include "engine/all_ranks.h"
#include "engine/machine.h"

namespace strata::engine {
namespace {

void check_tokens(const data::TokenFile& file, const char* what, std::int64_t vocab_size) {
  if (file.max_token() >= vocab_size) {
    throw DataError(std::string(what) + " has token id " + std::to_string(file.max_token()) +
                    ", but the model's vocab_size is " + std::to_string(vocab_size) +
                    ": the tokenizer and the model do not belong together");
  }
  if (file.trained_tokens() == 0) {
    throw DataError(std::string(what) + " has no token to learn from: every label is masked");
  }
}

}  // namespace

std::uint64_t bytes_to_save(const Engine& engine) {
  const OptimizerConfig& optimizer = engine.config().optimizer;
  const DType type = engine.config().param_type;
  const auto weights = static_cast<double>(reads_param(optimizer, type) ? bytes_of(type) : 0);
  const auto all = static_cast<double>(engine.parameters());
  const auto trained = static_cast<double>(engine.trained_parameters());
  return static_cast<std::uint64_t>(trained * (state_bytes_per_element(optimizer, type) + weights) +
                                    (all - trained) * static_cast<double>(bytes_of(type)) +
                                    all * static_cast<double>(bytes_of(DType::F32)));
}

Trainer::Trainer(Engine& engine, const RunConfig& config, const data::TokenFile& train,
                 const data::TokenFile* validation, TrainerEvents events)
    : engine_(engine),
      config_(config),
      train_(train),
      validation_(validation),
      events_(std::move(events)),
      share_{engine.communicator().rank(), engine.communicator().world(),
             static_cast<std::size_t>(config.gradient_accumulation_steps)},
      sampler_(train, config.per_device_train_batch_size, config.max_seq_length,
               static_cast<std::uint64_t>(config.seed), data::Sampler::Order::Shuffled) {
  on_every_rank(engine.communicator(), "look at output_dir", [&] { check(); });
  const auto per_epoch = static_cast<double>(sampler_.batches_per_epoch(share_));
  total_steps_ =
      config.max_steps > 0
          ? config.max_steps
          : std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(config.num_train_epochs * per_epoch)));
  schedule_ = config.lr_schedule(total_steps_);
  wear_ = {config.strata.nvme.rated_writes, config.strata.nvme.wear_limit};
}

void Trainer::check() const {
  check_tokens(train_, "the training data", engine_.model_config().vocab_size);
  if (validation_ != nullptr) check_tokens(*validation_, "the validation data", engine_.model_config().vocab_size);
  if (config_.save_strategy == SaveStrategy::No || share_.rank != 0) return;
  const std::uint64_t need = bytes_to_save(engine_);
  const std::uint64_t free = free_disk_bytes(config_.output_dir);
  if (free < need) {
    throw OutOfBudget(config_.output_dir.string() + ": a checkpoint and the exported model need " + format_bytes(need) +
                          ", but only " + format_bytes(free) + " are free; free some disk or set another output_dir",
                      need, free);
  }
}

void Trainer::resume(const std::filesystem::path& checkpoint) {
  const TrainerState state = load_checkpoint(engine_, checkpoint);
  sampler_.restore(state.sampler);
  attempted_ = state.run.step + state.run.skipped;
  history_ = state.history;
  saved_at_ = attempted_;
  if (events_.on_message) {
    events_.on_message("resumed from " + checkpoint.string() + " at step " + std::to_string(attempted_) +
                       "; learning rate, decay and the other settings are those of this run's configuration");
  }
}

double Trainer::epoch() const {
  const data::SamplerState state = sampler_.state();
  return static_cast<double>(state.epoch) + static_cast<double>(state.position) / static_cast<double>(train_.samples());
}

Trainer::Together Trainer::together(std::uint64_t written_a_step, bool stop) const {
  std::array<double, 3> sums{stop ? 1.0 : 0.0, static_cast<double>(engine_.nvme_written()),
                             static_cast<double>(written_a_step)};
  engine_.communicator().all_reduce_sum(sums);
  return {sums[0] > 0, static_cast<std::uint64_t>(sums[1]), static_cast<std::uint64_t>(sums[2])};
}

StepReport Trainer::report(const StepSummary& summary, double learning_rate, std::uint64_t tokens, double at) const {
  StepReport report;
  report.step = attempted_;
  report.total_steps = total_steps_;
  report.epoch = at;
  report.loss = summary.loss;
  report.learning_rate = learning_rate;
  report.grad_norm = summary.grad_norm;
  report.tokens = tokens;
  report.step_seconds = summary.seconds;
  report.seconds.forward = summary.forward_seconds;
  report.seconds.backward = summary.backward_seconds;
  report.seconds.optimizer = summary.optimizer_seconds;
  report.seconds.stall = summary.stall_seconds;
  if (summary.nvme_read + summary.nvme_written > 0) {
    report.seconds.stall_nvme = summary.stall_nvme_seconds;
    report.seconds.nvme_busy = summary.nvme_busy_seconds;
  }
  if (engine_.communicator().world() > 1) {
    report.seconds.comm = summary.comm_seconds;
    report.seconds.stall_comm = summary.stall_comm_seconds;
  }
  report.ideal_seconds = summary.ideal_seconds;
  report.binding_link = summary.binding_link;
  report.nvme_written_total = engine_.nvme_written();
  report.bytes = {summary.nvme_read, summary.nvme_written, summary.to_device, summary.to_host, {}};
  if (engine_.communicator().world() > 1) report.bytes.comm_sent = summary.sent.total();
  const PerTier peak = engine_.peak_bytes();
  report.peak_bytes = {peak[0], peak[1], peak[2]};
  const PerTier& budgets = engine_.memory_plan().budgets;
  report.limit_bytes = {budgets[0], budgets[1], budgets[2]};
  report.rss_bytes = resident_bytes();
  if (summary.loss_scale > 0) report.loss_scale = summary.loss_scale;
  report.skipped_steps = static_cast<std::uint64_t>(engine_.state().skipped);
  // 6 operations per parameter and token (forward 2, backward 4), recomputation not counted.
  report.tflops =
      6.0 * static_cast<double>(engine_.parameters()) * static_cast<double>(tokens) / summary.seconds / 1e12;
  return report;
}

double Trainer::evaluate() {
  const auto start = std::chrono::steady_clock::now();
  const std::int64_t batch = std::min(config_.per_device_eval_batch_size, config_.per_device_train_batch_size);
  data::Sampler sampler(*validation_, batch, config_.max_seq_length, 0, data::Sampler::Order::Sequential);
  const data::Share one{share_.rank, share_.ranks, 1};  // a batch to each rank at a time
  EvalSummary total;
  for (std::uint64_t i = 0; i < sampler.batches_per_epoch(one); ++i) {
    const EvalSummary part = engine_.evaluate(sampler.next(one).micro_batches.front());  // of all ranks
    total.loss_sum += part.loss_sum;
    total.tokens += part.tokens;
  }
  EvalReport report;
  report.step = attempted_;
  report.epoch = epoch();
  report.loss = total.tokens > 0 ? total.loss_sum / static_cast<double>(total.tokens) : 0;
  report.tokens = static_cast<std::uint64_t>(total.tokens);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (events_.on_evaluation) events_.on_evaluation(report);
  return report.loss;
}

void Trainer::save() {
  if (config_.save_strategy == SaveStrategy::No || saved_at_ == attempted_) return;
  const TrainerState state{engine_.state(), sampler_.state(), epoch(), static_cast<std::uint64_t>(config_.seed),
                           history_};
  result_.checkpoint = save_checkpoint(engine_, state, config_.output_dir, config_.save_total_limit);
  saved_at_ = attempted_;
  if (events_.on_message) events_.on_message("saved " + result_.checkpoint.string());
}

// Nothing is said of a run that writes nothing to a drive.
void Trainer::forecast_wear(std::uint64_t per_step, double step_seconds) const {
  if (per_step == 0 || !events_.on_message) return;
  events_.on_message(wear_.forecast(wear_at_start_, per_step, total_steps_ - first_step_, step_seconds));
}

TrainResult Trainer::run() {
  first_step_ = attempted_;
  Together all = together(engine_.memory_plan().nvme_written_per_step, false);
  wear_at_start_ = all.nvme_written;
  wear_.check(wear_at_start_, all.written_a_step, total_steps_ - attempted_);
  forecast_wear(all.written_a_step, 0);
  if (validation_ != nullptr) result_.first_eval_loss = evaluate();
  while (attempted_ < total_steps_) {
    if (!wear_.allows(all.nvme_written, all.written_a_step)) {
      result_.end = TrainResult::End::WearLimit;
      break;
    }
    const data::GlobalBatch batch = sampler_.next(share_);
    // By updates, not by attempts: a skipped step does not move the schedule.
    const double learning_rate = schedule_.for_update(engine_.state().step + 1);
    const StepSummary summary = engine_.train_step(batch.micro_batches, learning_rate);
    ++attempted_;
    history_.push_back({attempted_, epoch(), summary.loss, learning_rate, summary.grad_norm});
    if (events_.on_step) events_.on_step(report(summary, learning_rate, batch.tokens, epoch()));
    all = together(summary.nvme_written, events_.stop_requested && events_.stop_requested());
    // The first step lays out what the second finds cached.
    if (attempted_ == first_step_ + 2) forecast_wear(all.written_a_step, summary.seconds);
    if (all.stop) {
      result_.end = TrainResult::End::Stopped;
      break;
    }
    if (config_.save_steps > 0 && attempted_ % config_.save_steps == 0) save();
    if (validation_ != nullptr && config_.eval_steps > 0 && attempted_ % config_.eval_steps == 0 &&
        attempted_ < total_steps_) {
      result_.last_eval_loss = evaluate();
    }
  }
  save();
  result_.steps = attempted_;
  if (validation_ != nullptr && result_.end == TrainResult::End::Finished) result_.last_eval_loss = evaluate();
  return result_;
}

}  // namespace strata::engine
