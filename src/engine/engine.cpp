#include "engine/engine.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "comm/planned_ranks.h"
#include "core/error.h"
#include "engine/agreement.h"
#include "engine/cuda_plugin.h"
#include "engine/engine_impl.h"

namespace strata::engine {

EvalSummary Engine::Impl::evaluate(const data::Batch& batch) {
  use_schedule(Mode::Forward);
  (void)busy_.take();  // nobody asks for it here, and a long evaluation must not pile it up
  const zero::LossSum loss = runner_->evaluate(view_of(batch));
  std::array<double, 2> sums{loss.loss_sum, static_cast<double>(loss.tokens)};
  comm_.all_reduce_sum(sums);
  return {sums[0], static_cast<std::int64_t>(sums[1])};
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
    std::int64_t token = std::max_element(logits.begin(), logits.end()) - logits.begin();
    // Ranks may differ in the last bit of a logit; that must not make them take different paths.
    comm_.broadcast(std::as_writable_bytes(std::span(&token, 1)), 0);
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

std::uint64_t Engine::Impl::trained_parameters() const {
  std::uint64_t numel = 0;
  for (const zero::FlatLayout& layout : compute_->layouts()) {
    numel += layout.group().trainable ? layout.param_numel() : 0;
  }
  return numel;
}

std::string Engine::Impl::compute_name() const {
  if (parts.chosen == Compute::Fp32 || config.param_type == DType::F32) return "fp32";
  return config.param_type == DType::F16 ? "fp16" : "bf16";
}

std::vector<std::string> Engine::Impl::frozen_groups() const {
  std::vector<std::string> names;
  for (const zero::FlatLayout& layout : compute_->layouts()) {
    if (!layout.group().trainable) names.push_back(layout.group().name);
  }
  return names;
}

std::string Engine::Impl::description() const {
  std::ostringstream out;
  if (parts.gpu) out << "on " << parts.gpu->facts.name << ", ";
  out << "parameters " << name_of(config.param_type) << ", matrix products " << compute_name() << ", CPU Adam "
      << name_of(optimizer_.isa()) << " on " << pool_->threads() << " threads, parameters on "
      << name_of(plan.placement.param);
  if (config.training) {
    out << ", gradients on " << name_of(plan.placement.grad) << ", optimizer on " << name_of(plan.placement.optimizer)
        << ", " << description_of(plan.updates);
    if (trained_parameters() < parameters()) {
      out << ", " << parameters() - trained_parameters() << " of the parameters frozen";
    }
  }
  return out.str();
}

std::unique_ptr<Engine> Engine::create(const EngineConfig& config) try {
  ModelParts parts = make_model_parts(config);
  PerTier budgets = resolve_budgets(config, parts.gpu);
  if (config.comm) budgets = smallest_budgets(*config.comm, budgets);
  MemoryPlan plan = make_plan(plan_request(config, parts, budgets));
  if (config.comm) require_same_run(*config.comm, config, *parts.compute, plan);
  auto impl = std::make_unique<Impl>(config, std::move(parts), std::move(plan));
  impl->load_weights();
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
} catch (...) {
  abort_communicators(config, std::current_exception());
  throw;
}

MemoryPlan Engine::plan(const EngineConfig& run, std::size_t ranks, std::size_t per_node) {
  EngineConfig config = run;
  if (ranks > 0) {
    if (per_node == 0 || ranks % per_node != 0) {
      throw ConfigError(std::to_string(ranks) + " ranks are no whole number of nodes of " + std::to_string(per_node));
    }
    config.comm = std::make_shared<comm::PlannedRanks>(ranks);
    config.node_comm = std::make_shared<comm::PlannedRanks>(per_node);
    config.across_comm = std::make_shared<comm::PlannedRanks>(ranks / per_node);
  }
  // Without a GPU here the run is another machine's.
  const bool elsewhere = ranks > 0 || (config.cuda_device && cuda_devices().count == 0);
  const Machine machine = elsewhere ? Machine::Other : Machine::This;
  const ModelParts parts = make_model_parts(config, machine);
  return make_plan(plan_request(config, parts, resolve_budgets(config, parts.gpu, machine)));
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
// A full disk while saving leaves the run itself intact, so it does not poison the engine. A step that failed may have
// updated some layers and not others: nothing is saved of that.
void Engine::export_model(const std::filesystem::path& folder) {
  impl_->throw_if_failed();
  impl_->export_model(folder);
}
void Engine::save_states(const std::filesystem::path& folder) {
  impl_->throw_if_failed();
  impl_->save_states(folder);
}
void Engine::load_states(const std::filesystem::path& folder, const RunState& state) {
  impl_->guarded([&] { impl_->load_states(folder, state); });
}
std::vector<float> Engine::get(const std::string& what, const std::string& name) {
  impl_->throw_if_failed();
  return impl_->get(what, name);
}
void Engine::set(const std::string& what, const std::string& name, std::span<const float> values) {
  impl_->throw_if_failed();
  impl_->set(what, name, values);
}
std::vector<std::string> Engine::frozen_groups() const {
  return impl_->frozen_groups();
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
Communicator& Engine::communicator() const {
  return impl_->communicator();
}
SentBytes Engine::sent() const {
  return impl_->sent();
}
std::string Engine::compute_name() const {
  return impl_->compute_name();
}
std::uint64_t Engine::parameters() const {
  return impl_->parameters();
}
std::uint64_t Engine::trained_parameters() const {
  return impl_->trained_parameters();
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