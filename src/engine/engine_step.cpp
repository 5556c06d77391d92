// Engine::Impl: a training step, and what it measured.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/error.h"
#include "engine/engine_impl.h"

namespace strata::engine {
namespace {

double seconds_between(std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

void Engine::Impl::use_schedule(Mode mode) {
  if (mode != Mode::Train) settle();
  if (mode == mode_) return;
  mode_ = mode;
  switch (mode) {
    case Mode::None:
      store_->set_schedule(nullptr);
      break;
    case Mode::Train:
      store_->set_schedule(train_schedule_);
      break;
    case Mode::Forward:
      store_->set_schedule(forward_schedule_, train_schedule_);
      break;
  }
}

void Engine::Impl::settle() {
  store_->let_lanes_pass();  // no gather goes on until this returns
  for (const Event& updated : updating_) updated.wait();
  updating_.clear();
}

Engine::Impl::Meters Engine::Impl::meters() const {
  return {nvme_stats(),
          device_tier_.stats(),
          counters_.to_device,
          counters_.to_host,
          store_->stats().stall_seconds,
          collectives_.sent(),
          collectives_.busy_seconds()};
}

StepContext Engine::Impl::step_context(double learning_rate, float grad_scale) const {
  StepContext context;
  context.step = state.step + 1;
  context.learning_rate = learning_rate;
  context.beta1 = config.adamw.beta1;
  context.beta2 = config.adamw.beta2;
  context.epsilon = config.adamw.epsilon;
  context.weight_decay = config.adamw.weight_decay;
  context.grad_scale = grad_scale;
  context.seed = config.seed;
  return context;
}

zero::LossSum Engine::Impl::run_micro_batches(std::span<const zero::BatchView> views, double learning_rate,
                                              double tokens) {
  if (update_time() != zero::UpdateTime::DuringBackward || !(tokens > 0)) return runner_->train(train_visits_, views);
  const StepContext context = step_context(learning_rate, static_cast<float>(1 / tokens));
  std::vector<Event> started;
  const zero::LossSum loss = runner_->train(train_visits_, views, [&](std::size_t group, const Event& gradient) {
    return started.emplace_back(pipeline_->start(group, context, gradient));
  });
  settle();  // long done: every layer has waited for its own update
  updating_ = std::move(started);
  return loss;
}

StepSummary Engine::Impl::train_step(std::span<const data::Batch> micro_batches, double learning_rate) {
  STRATA_EXPECTS(config.training, "this engine was made without training");
  STRATA_EXPECTS(micro_batches.size() == static_cast<std::size_t>(config.micro_batches),
                 "one update takes config.micro_batches micro-batches");
  if (mode_ != Mode::Train) {
    reported_ = meters();
    reported_at_ = Clock::now();
    (void)busy_.take();
  }
  if (measured_) {
    use_schedule(Mode::None);
    plan_pages(*std::exchange(measured_, std::nullopt));
  }
  use_schedule(Mode::Train);

  StepSummary summary;
  std::vector<zero::BatchView> views;
  double tokens = 0;
  for (const data::Batch& batch : micro_batches) {
    views.push_back(view_of(batch));
    tokens += static_cast<double>(batch.target_tokens);
  }
  // Gradients are sums; the one scale of the step is known before forward, over all ranks.
  comm_.all_reduce_sum({&tokens, 1});
  summary.loss_scale = state.loss_scale.scale;
  const double seed = gradient_seed(state.loss_scale, tokens);
  for (zero::BatchView& view : views) view.loss_scale = seed;
  zero::LossSum loss = run_micro_batches(views, learning_rate, tokens);
  comm_.all_reduce_sum({&loss.loss_sum, 1});
  summary.tokens = static_cast<std::int64_t>(tokens);
  summary.loss = tokens > 0 ? loss.loss_sum / tokens : 0;

  const double divisor = tokens * seed;
  grad_divisor_ = divisor;
  summary.grad_norm = tokens > 0 ? std::sqrt(reducer_->sum_of_squares()) / divisor : 0;
  summary.skipped = !(tokens > 0) || !std::isfinite(summary.grad_norm);
  const zero::UpdateTime time = update_time();
  if (summary.skipped || time != zero::UpdateTime::DuringBackward) settle();  // long done, as above
  // What an update does under the next forward belongs to the next step.
  if (time == zero::UpdateTime::UnderForward) measure(summary);
  if (summary.skipped) {
    ++state.skipped;
  } else {
    if (time != zero::UpdateTime::DuringBackward) start_update(summary.grad_norm, divisor, learning_rate);
    ++state.step;
    if (time == zero::UpdateTime::AfterBackward) settle();
  }
  if (time != zero::UpdateTime::UnderForward) measure(summary);
  if (summary.skipped) use_schedule(Mode::None);  // the next step begins at the schedule's beginning
  if (config.loss_scale && tokens > 0) {
    state.loss_scale = summary.skipped ? after_overflow(*config.loss_scale, state.loss_scale)
                                       : after_good_step(*config.loss_scale, state.loss_scale);
  }
  // The first step warms up; after the second one the plan of the pages can use what was measured.
  if (nvme_store_ && ++steps_measured_ == 2) {
    measured_ = summary;
  }
  return summary;
}

void Engine::Impl::start_update(double grad_norm, double divisor, double learning_rate) {
  // As torch.nn.utils.clip_grad_norm_: max_norm / (norm + 1e-6), at most 1.
  const double max_norm = config.adamw.max_grad_norm;
  const double clip = max_norm > 0 ? std::min(1.0, max_norm / (grad_norm + 1e-6)) : 1.0;
  updating_ = pipeline_->start(step_context(learning_rate, static_cast<float>(clip / divisor)));
  // A frozen group that is kept gathered would be gathered again.
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (trainable(g)) groups_[g].update_until(updating_[g], pipeline_->updated_pieces(g));
  }
}

void Engine::Impl::measure(StepSummary& summary) {
  const Clock::time_point now = Clock::now();
  const zero::BusyTimes::Totals busy = busy_.take();
  summary.seconds = seconds_between(reported_at_, now);
  summary.forward_seconds = busy.of(zero::Work::Forward);
  summary.backward_seconds = busy.of(zero::Work::Backward);
  summary.device_update_seconds = busy.of(zero::Work::DeviceUpdate);
  summary.optimizer_seconds = busy.of(zero::Work::Update) + summary.device_update_seconds;
  summary.stall_seconds = std::max(0.0, summary.seconds - busy.any);
  reported_at_ = now;
  add_traffic(summary);
}

// What moved since the step before.
void Engine::Impl::add_traffic(StepSummary& summary) {
  const Meters now = meters();
  summary.nvme_read = now.nvme.bytes_read - reported_.nvme.bytes_read;
  summary.nvme_written = now.nvme.bytes_written - reported_.nvme.bytes_written;
  summary.to_device = now.to_device - reported_.to_device + now.device.bytes_written - reported_.device.bytes_written;
  summary.to_host = now.to_host - reported_.to_host + now.device.bytes_read - reported_.device.bytes_read;
  summary.sent = now.sent - reported_.sent;
  summary.comm_seconds = now.comm_seconds - reported_.comm_seconds;
  summary.stall_comm_seconds = std::min(summary.stall_seconds, summary.comm_seconds);
  summary.stall_nvme_seconds = std::min(summary.stall_seconds, now.waited - reported_.waited);
  add_ideal(summary, reported_.nvme, now.nvme);
  reported_ = now;
}

// On the host device products, updates and copies share the cores, so they are one resource. Beside a GPU the
// processor's updates are another, and so is each direction of the link.
std::vector<ResourceTime> Engine::Impl::computing(const StepSummary& summary) const {
  if (!config.cuda_device) return {{"compute", summary.seconds - summary.stall_seconds}};  // one of them was running
  const zero::UpdateCosts& costs = parts.update_costs;
  return {{"compute", summary.forward_seconds + summary.backward_seconds + summary.device_update_seconds},
          {"cpu update", summary.optimizer_seconds - summary.device_update_seconds},
          {"link to the device", static_cast<double>(summary.to_device) * costs.to_device},
          {"link to the host", static_cast<double>(summary.to_host) * costs.to_host}};
}

// Each drive is a resource beside those.
void Engine::Impl::add_ideal(StepSummary& summary, const BlobStoreStats& before, const BlobStoreStats& after) const {
  std::vector<ResourceTime> resources = computing(summary);
  for (std::size_t i = 0; i < after.drives.size(); ++i) {
    const DriveStats& drive = after.drives[i];
    summary.nvme_busy_seconds = std::max(summary.nvme_busy_seconds, drive.busy_seconds - before.drives[i].busy_seconds);
    const double seconds =
        drive_seconds(drive.bytes_read - before.drives[i].bytes_read,
                      drive.bytes_written - before.drives[i].bytes_written, rates_of_drive(i, drive));
    if (!std::isfinite(seconds)) return;
    resources.push_back({"nvme " + drive.path, seconds});
  }
  const ResourceTime binding = binding_resource(resources);
  summary.ideal_seconds = binding.seconds;
  summary.binding_link = binding.name;
}

// What `strata tune` measured of the drive, else the best that it did in this run.
DriveRates Engine::Impl::rates_of_drive(std::size_t path, const DriveStats& drive) const {
  const nvme::DeviceProfile& profile = profiles_.at(path);
  if (profile.read_rate > 0 && profile.write_rate > 0) {
    return {profile.read_rate, profile.write_rate, profile.mixed_rate};
  }
  // Before the first window of a rate is full: all that was moved so far.
  const auto overall = [](std::uint64_t bytes, double busy) {
    return busy > 0 ? static_cast<double>(bytes) / busy : 0;
  };
  return {drive.read_rate > 0 ? drive.read_rate : overall(drive.bytes_read, drive.read_busy_seconds),
          drive.best_write_rate > 0 ? drive.best_write_rate : overall(drive.bytes_written, drive.write_busy_seconds),
          0};
}

}  // namespace strata::engine
