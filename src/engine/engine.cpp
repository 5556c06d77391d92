#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <sstream>

#include "core/bytes.h"
#include "core/error.h"
#include "core/log.h"
#include "engine/engine_impl.h"
#include "zero/torch_host.h"

namespace strata::engine {
namespace {

using offload::TierKind;
double seconds_between(std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

zero::BatchView view_of(const data::Batch& batch) {
  return {batch.sequences, batch.tokens_each, batch.tokens, batch.labels};
}

HostDeviceOptions device_options(const EngineConfig& config) {
  HostDeviceOptions options;
  if (config.adversarial_streams) options.mode = HostDeviceOptions::Mode::Adversarial;
  options.seed = config.seed;
  return options;
}

nvme::NvmeOptions nvme_options(const EngineConfig& config, std::span<std::byte> pages, std::uint64_t chunk_bytes) {
  nvme::NvmeOptions options;
  options.paths = config.nvme_paths;
  for (const std::filesystem::path& path : options.paths) {
    options.profiles.push_back(nvme::load_profile(path).value_or(nvme::DeviceProfile{}));
  }
  if (config.io_block_bytes) options.block_bytes = *config.io_block_bytes;
  if (config.io_queue_depth) options.queue_depth = *config.io_queue_depth;
  if (config.io_threads > 0) options.io_threads = static_cast<unsigned>(config.io_threads);
  switch (config.io_backend) {
    case IoBackend::Auto:
      options.backend = nvme::BackendKind::Auto;
      break;
    case IoBackend::Uring:
      options.backend = nvme::BackendKind::Uring;
      break;
    case IoBackend::Threads:
      options.backend = nvme::BackendKind::Threads;
      break;
  }
  options.chunk_bytes = chunk_bytes;
  options.checksums = config.nvme_checksums;
  options.trace = config.trace;
  options.regions = {pages};
  return options;
}

}  // namespace

Engine::Impl::Impl(const EngineConfig& engine_config, ModelParts model_parts, MemoryPlan memory_plan)
    : config(engine_config),
      parts(std::move(model_parts)),
      plan(std::move(memory_plan)),
      device_(plan.budgets[0], device_options(config)),
      host_budget_("host", plan.budgets[1]),
      nvme_budget_("nvme", plan.budgets[2]),
      torch_allocator_(std::make_unique<zero::TorchAllocator>(device_.budget())),
      pool_(make_thread_pool(config.adam_threads)),
      one_thread_(make_thread_pool(1)),
      device_thread_(make_thread_pool(1)),
      optimizer_(*pool_, config.optimizer),
      host_math_(*pool_),
      adder_math_(*one_thread_),
      device_math_(*device_thread_),
      pages_(allocate_host(host_budget_, plan.slots * plan.slot_bytes, MemoryTag::Staging), plan.slot_bytes),
      file_buffer_(allocate_host(host_budget_, kFileBufferBytes, MemoryTag::Staging)),
      host_tier_(host_budget_),
      device_tier_(device_),
      compute_(std::move(parts.compute)),
      states_(config.training ? optimizer_.states(config.param_type) : std::vector<StateSpec>{}),
      busy_(config.trace),
      copy_in_(device_.create_stream("copy-in")),
      copy_out_(device_.create_stream("copy-out")),
      comm_stream_(device_.create_stream("comm")),
      compute_stream_(device_.create_stream("compute")),
      update_stream_(device_.create_stream("update")) {
  if (plan.grad_staging_slots > 0) {
    grad_staging_.emplace(allocate_host(host_budget_, plan.grad_staging_slots * plan.slot_bytes, MemoryTag::Staging),
                          plan.slot_bytes);
  }
  for (std::size_t i = 0; i < plan.device_staging_slots; ++i) {
    device_staging_.push_back(device_.allocate(plan.slot_bytes, MemoryTag::Staging));
  }
  if (plan.placement.param == TierKind::Nvme || plan.placement.optimizer == TierKind::Nvme) {
    const nvme::NvmeOptions options = nvme_options(config, pages_.region(), plan.slot_bytes);
    profiles_ = options.profiles;
    nvme_store_ = std::make_unique<nvme::NvmeStore>(options, nvme_budget_);
    nvme_tier_ = std::make_unique<offload::BlobTier>(*nvme_store_);
  }
  offload::ShardStoreOptions store_options;
  store_options.look_ahead_bytes = plan.look_ahead_bytes;
  store_options.pins_at_once = plan.pins_at_once;
  store_ =
      std::make_unique<offload::ShardStore>(tiers(), pages_, std::make_unique<offload::NextUsePolicy>(), store_options);
  add_shards();
  wire();
  const std::size_t threads = config.compute_threads > 0 ? config.compute_threads : usable_cpus();
  compute_stream_->launch([threads] { zero::set_torch_threads(threads); });
}

std::array<offload::Tier*, offload::kTiers> Engine::Impl::tiers() {
  return {&device_tier_, &host_tier_, nvme_tier_.get()};
}

void Engine::Impl::add_shards() {
  site_ = plan.placement.optimizer == TierKind::Device ? zero::UpdateSite::Device : zero::UpdateSite::Host;
  std::vector<std::size_t> per_value;
  for (const StateSpec& state_spec : states_) per_value.push_back(state_spec.elements_per_value);
  for (const GroupSpecs& specs :
       shard_specs(compute_->layouts(), plan.placement, config.param_type, plan.grad_type, states_)) {
    zero::GroupShards shards;
    shards.param = store_->add(specs.param);
    if (config.training) {
      shards.grad = store_->add(specs.grad);
      for (const offload::ShardSpec& spec : specs.states) shards.states.push_back(store_->add(spec));
      updates_.push_back(
          {shards.param,
           optimizer_.reads_param(config.param_type) ? offload::Access::ReadWrite : offload::Access::Write, shards.grad,
           shards.states, per_value});
    }
    shards_.push_back(std::move(shards));
  }
}

void Engine::Impl::wire() {
  gather_slots_ = std::make_unique<zero::DeviceSlots>(device_, MemoryTag::Gather, plan.gather_slots);
  grad_slots_ = std::make_unique<zero::DeviceSlots>(device_, MemoryTag::Grad, plan.grad_slots);
  compute_->keep_graphs(plan.kept_graphs);
  grad_sum_slots_ = std::make_unique<zero::DeviceSlots>(device_, MemoryTag::Grad, plan.grad_sum_slots);
  const std::vector<zero::FlatLayout>& layouts = compute_->layouts();
  std::vector<const zero::FlatLayout*> pointers;
  groups_.reserve(layouts.size());
  for (std::size_t g = 0; g < layouts.size(); ++g) {
    pointers.push_back(&layouts[g]);
    groups_.emplace_back(layouts[g], config.param_type, shards_[g].param, compute_->binding(g), *store_, *gather_slots_,
                         comm_, streams(), counters_);
  }
  const std::vector<zero::Visit> train = zero::train_visits(
      *compute_, static_cast<std::size_t>(config.training ? config.micro_batches : 0), plan.accumulation);
  zero::GradReducer::Options options{config.param_type, zero::count_contributions(train, layouts.size()),
                                     zero::leading_contributions(train, layouts.size()), grad_sum_slots_.get()};
  if (update_time() == zero::UpdateTime::DuringBackward) {
    options.not_finite = zero::GradReducer::Options::NotFinite::Fails;
  }
  reducer_ = std::make_unique<zero::GradReducer>(pointers, shards_, std::move(options), *store_, *grad_slots_,
                                                 grad_staging_ ? &*grad_staging_ : nullptr, comm_, streams(), adder_,
                                                 adder_math_, device_math_, counters_);
  pipeline_ = std::make_unique<zero::OptimizerPipeline>(pointers, updates_, site_, *store_, optimizer_, optimizer_,
                                                        device_staging_.empty() ? nullptr : device_staging_.data(),
                                                        comm_.rank(), *update_stream_, update_thread_, counters_, busy_,
                                                        zero::update_lane(update_time()));
  runner_ = std::make_unique<zero::LayerRunner>(*compute_, groups_, *reducer_, streams(), plan.ahead, busy_);
  if (config.training) {
    train_visits_ = train;
    plan_pages({});
  }
  const std::vector<zero::Visit> forward = zero::forward_visits(*compute_);
  forward_schedule_ = std::make_shared<offload::Schedule>(
      "forward", zero::scheduled_accesses(*store_, shards_, zero::plan_actions(forward, plan.ahead), nullptr, site_));
}

void Engine::Impl::plan_pages(const StepSummary& measured) {
  // Visits of one direction are taken as equally long.
  std::array<double, 2> runs{};
  for (const zero::Visit& visit : train_visits_) ++runs[visit.direction == zero::Direction::Forward ? 0 : 1];
  zero::StepSeconds seconds;
  for (const zero::Visit& visit : train_visits_) {
    seconds.visits.push_back(visit.direction == zero::Direction::Forward ? measured.forward_seconds / runs[0]
                                                                         : measured.backward_seconds / runs[1]);
  }
  seconds.update_seconds_per_element = measured.optimizer_seconds / static_cast<double>(parameters());
  const std::vector<offload::TimedAccess> accesses =
      zero::timed_accesses(*store_, shards_, zero::plan_actions(train_visits_, plan.ahead, update_time()), &updates_,
                           site_, seconds, update_time());
  const BlobStoreStats stats = nvme_stats();
  const DriveRates rates = stats.drives.empty() ? DriveRates{} : rates_of_drive(0, stats.drives.front());
  PagePlan pages =
      engine::plan_pages(accesses, rates, {plan.slots, static_cast<std::size_t>(plan.slot_bytes), plan.pins_at_once});
  train_schedule_ = std::move(pages.schedule);
  store_->set_look_ahead(config.look_ahead_bytes.value_or(pages.look_ahead_bytes));
}

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
  for (const Event& updated : updating_) updated.wait();
  updating_.clear();
}

Engine::Impl::Meters Engine::Impl::meters() const {
  return {nvme_stats(), device_tier_.stats(), counters_.to_device, counters_.to_host, store_->stats().stall_seconds};
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
  const zero::LossSum loss = run_micro_batches(views, learning_rate, tokens);
  summary.tokens = static_cast<std::int64_t>(tokens);
  summary.loss = tokens > 0 ? loss.loss_sum / tokens : 0;

  summary.grad_norm = tokens > 0 ? std::sqrt(reducer_->sum_of_squares()) / tokens : 0;
  summary.skipped = !(tokens > 0) || !std::isfinite(summary.grad_norm);
  const zero::UpdateTime time = update_time();
  if (summary.skipped || time != zero::UpdateTime::DuringBackward) settle();  // long done, as above
  // What an update does under the next forward belongs to the next step.
  if (time == zero::UpdateTime::UnderForward) measure(summary);
  if (summary.skipped) {
    ++state.skipped;
  } else {
    if (time != zero::UpdateTime::DuringBackward) start_update(summary.grad_norm, tokens, learning_rate);
    ++state.step;
    if (time == zero::UpdateTime::AfterBackward) settle();
  }
  if (time != zero::UpdateTime::UnderForward) measure(summary);
  if (summary.skipped) use_schedule(Mode::None);  // the next step begins at the schedule's beginning
  // The first step warms up; after the second one the plan of the pages can use what was measured.
  if (nvme_store_ && ++steps_measured_ == 2) {
    measured_ = summary;
  }
  return summary;
}

void Engine::Impl::start_update(double grad_norm, double tokens, double learning_rate) {
  // As torch.nn.utils.clip_grad_norm_: max_norm / (norm + 1e-6), at most 1.
  const double max_norm = config.adamw.max_grad_norm;
  const double clip = max_norm > 0 ? std::min(1.0, max_norm / (grad_norm + 1e-6)) : 1.0;
  updating_ = pipeline_->start(step_context(learning_rate, static_cast<float>(clip / tokens)));
  for (std::size_t g = 0; g < groups_.size(); ++g) groups_[g].update_until(updating_[g]);
}

void Engine::Impl::measure(StepSummary& summary) {
  const Clock::time_point now = Clock::now();
  const zero::BusyTimes::Totals busy = busy_.take();
  summary.seconds = seconds_between(reported_at_, now);
  summary.forward_seconds = busy.of(zero::Work::Forward);
  summary.backward_seconds = busy.of(zero::Work::Backward);
  summary.optimizer_seconds = busy.of(zero::Work::Update);
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
  summary.stall_nvme_seconds = std::min(summary.stall_seconds, now.waited - reported_.waited);
  add_ideal(summary, reported_.nvme, now.nvme);
  reported_ = now;
}

// On the host device products, updates and copies share the cores, so compute is one resource; each drive is another.
void Engine::Impl::add_ideal(StepSummary& summary, const BlobStoreStats& before, const BlobStoreStats& after) const {
  std::vector<ResourceTime> resources{
      {"compute", summary.seconds - summary.stall_seconds}};  // at least one of the three was running
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

EvalSummary Engine::Impl::evaluate(const data::Batch& batch) {
  use_schedule(Mode::Forward);
  (void)busy_.take();  // nobody asks for it here, and a long evaluation must not pile it up
  const zero::LossSum loss = runner_->evaluate(view_of(batch));
  return {loss.loss_sum, loss.tokens};
}

std::vector<std::int64_t> Engine::Impl::generate(std::vector<std::int64_t> prompt, std::size_t max_new,
                                                 const std::function<void(std::int64_t)>& on_token) {
  STRATA_EXPECTS(!prompt.empty(), "generation needs at least one token to continue");
  use_schedule(Mode::Forward);
  std::vector<std::int64_t> made;
  for (std::size_t i = 0; i < max_new; ++i) {
    const zero::BatchView batch{1, static_cast<std::int64_t>(prompt.size()), prompt, {}};
    (void)busy_.take();  // as in evaluate()
    const std::vector<float> logits = runner_->generate(batch);
    const std::int64_t token = std::max_element(logits.begin(), logits.end()) - logits.begin();
    const std::vector<std::int64_t>& eos = parts.config.eos_token_ids;
    if (std::find(eos.begin(), eos.end(), token) != eos.end()) break;
    made.push_back(token);
    prompt.push_back(token);
    if (on_token) on_token(token);
  }
  return made;
}

PerTier Engine::Impl::peak_bytes() {
  return {device_.budget().peak(), host_budget_.peak(), nvme_budget_.peak()};
}

std::uint64_t Engine::Impl::parameters() const {
  std::uint64_t numel = 0;
  for (const zero::FlatLayout& layout : compute_->layouts()) numel += layout.param_numel();
  return numel;
}

std::string Engine::Impl::compute_name() const {
  return parts.chosen == Compute::Fp32 || config.param_type == DType::F32 ? "fp32" : "bf16";
}

std::string Engine::Impl::description() const {
  std::ostringstream out;
  out << "parameters " << name_of(config.param_type) << ", matrix products " << compute_name() << ", CPU Adam "
      << name_of(optimizer_.isa()) << " on " << pool_->threads() << " threads, parameters on "
      << name_of(plan.placement.param);
  if (config.training) {
    out << ", gradients on " << name_of(plan.placement.grad) << ", optimizer on " << name_of(plan.placement.optimizer);
  }
  return out.str();
}

std::unique_ptr<Engine> Engine::create(const EngineConfig& config) {
  ModelParts parts = make_model_parts(config);
  const PerTier budgets = resolve_budgets(config);
  MemoryPlan plan = make_plan(plan_request(config, parts, budgets));
  auto impl = std::make_unique<Impl>(config, std::move(parts), std::move(plan));
  impl->load_weights();
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

MemoryPlan Engine::plan(const EngineConfig& config) {
  const ModelParts parts = make_model_parts(config);
  return make_plan(plan_request(config, parts, resolve_budgets(config)));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

StepSummary Engine::train_step(std::span<const data::Batch> micro_batches, double learning_rate) {
  return impl_->guarded([&] { return impl_->train_step(micro_batches, learning_rate); });
}
EvalSummary Engine::evaluate(const data::Batch& batch) {
  return impl_->guarded([&] { return impl_->evaluate(batch); });
}
std::vector<std::int64_t> Engine::generate(std::vector<std::int64_t> prompt, std::size_t max_new,
                                           const std::function<void(std::int64_t)>& on_token) {
  return impl_->guarded([&] { return impl_->generate(std::move(prompt), max_new, on_token); });
}
// A full disk while saving leaves the run itself intact, so it does not poison the engine.
void Engine::export_model(const std::filesystem::path& folder) {
  impl_->export_model(folder);
}
void Engine::save_states(const std::filesystem::path& folder) {
  impl_->save_states(folder);
}
void Engine::load_states(const std::filesystem::path& folder, const RunState& state) {
  impl_->guarded([&] { impl_->load_states(folder, state); });
}
std::vector<float> Engine::parameter(const std::string& name) {
  return impl_->guarded([&] { return impl_->parameter(name); });
}
const RunState& Engine::state() const {
  return impl_->state;
}
const MemoryPlan& Engine::memory_plan() const {
  return impl_->plan;
}
const hf::ModelConfig& Engine::model_config() const {
  return impl_->parts.config;
}
const EngineConfig& Engine::config() const {
  return impl_->config;
}
std::string Engine::compute_name() const {
  return impl_->compute_name();
}
std::uint64_t Engine::parameters() const {
  return impl_->parameters();
}
PerTier Engine::peak_bytes() const {
  return impl_->peak_bytes();
}
void Engine::wait() {
  impl_->guarded([&] { impl_->wait(); });
}
std::uint64_t Engine::nvme_written() const {
  return impl_->nvme_written();
}
std::vector<DriveStats> Engine::drives() const {
  return impl_->nvme_stats().drives;
}
std::string Engine::description() const {
  return impl_->description();
}

}  // namespace strata::engine
