// Engine::Impl: how the parts are made and put together.
#include <algorithm>

#include "core/bytes.h"
#include "core/error.h"
#include "core/log.h"
#include "core/memory_nodes.h"
#include "engine/engine_impl.h"
#include "zero/torch_host.h"

namespace strata::engine {
namespace {

using offload::TierKind;

AcceleratorNeeds needs_of(const EngineConfig& config, const MemoryPlan& plan) {
  return {.budget_bytes = plan.budgets[0],
          .torch_bytes = plan.torch_bytes,
          // Beside those on the host.
          .update_threads = plan.updates.device_share > 0 ? config.adam_threads : 1};
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
  options.job = config.job;
  options.local_ranks = config.local_ranks;
  options.rank = config.comm ? config.comm->rank() : 0;
  return options;
}

}  // namespace

Engine::Impl::Impl(const EngineConfig& engine_config, ModelParts model_parts, MemoryPlan memory_plan)
    : config(engine_config),
      parts(std::move(model_parts)),
      plan(std::move(memory_plan)),
      accelerator_(make_accelerator(config, needs_of(config, plan))),
      device_(accelerator_->device()),
      host_budget_("host", plan.budgets[1]),
      nvme_budget_("nvme", plan.budgets[2]),
      pool_(make_thread_pool(config.adam_threads)),
      one_thread_(make_thread_pool(1)),
      optimizer_(*pool_, config.optimizer),
      host_math_(*pool_),
      adder_math_(*one_thread_),
      collectives_(config, parts.shape, device_, accelerator_->math()),
      comm_(collectives_.all()),
      pages_(allocate_host(host_budget_, plan.slots * plan.slot_bytes, MemoryTag::Staging), plan.slot_bytes),
      file_buffer_(allocate_host(host_budget_, kFileBufferBytes, MemoryTag::Staging)),
      communicators_(host_budget_.reserve(config.communicator_bytes, MemoryTag::Staging)),
      host_tier_(host_budget_,
                 [this](std::span<std::byte> pages, MemoryTag tag) {
                   // States cross the link only where the device updates them.
                   if (tag != MemoryTag::OptimState || plan.updates.device_share > 0) pin(pages);
                 }),
      device_tier_(device_),
      compute_(std::move(parts.compute)),
      states_(config.training ? optimizer_.states(config.param_type) : std::vector<StateSpec>{}),
      moments_(moment_specs(config.optimizer.kind)),
      busy_(config.trace),
      copy_in_(device_.create_stream("copy-in")),
      copy_out_(device_.create_stream("copy-out")),
      comm_stream_(accelerator_->create_library_stream("comm")),
      compute_stream_(accelerator_->create_library_stream("compute")),
      update_in_(device_.create_stream("update-in")),
      update_stream_(device_.create_stream("update")),
      update_out_(device_.create_stream("update-out")) {
  pin(pages_.region());
  if (plan.grad_staging_slots > 0) {
    grad_staging_.emplace(allocate_host(host_budget_, plan.grad_staging_slots * plan.slot_bytes, MemoryTag::Staging),
                          plan.slot_bytes);
    pin(grad_staging_->region());
  }
  for (std::size_t i = 0; plan.updates.staging_bytes > 0 && i < zero::kUpdateStagingSets; ++i) {
    update_staging_.push_back(device_.allocate(plan.updates.staging_bytes, MemoryTag::Staging));
  }
  if (plan.placement.param == TierKind::Nvme || plan.placement.grad == TierKind::Nvme ||
      plan.placement.optimizer == TierKind::Nvme) {
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
  choose_update_sites();
  wire();
  const std::size_t threads = config.compute_threads > 0 ? config.compute_threads : usable_cpus();
  compute_stream_->launch([threads] { zero::set_torch_threads(threads); });
}

// Before the pages are touched, which pinning does: from the node of the GPU's slot, so that copies do not cross the
// link between processors.
void Engine::Impl::pin(std::span<std::byte> pages) {
  if (parts.gpu && parts.gpu->facts.numa_node >= 0) {
    machine_nodes().prefer(pages, static_cast<unsigned>(parts.gpu->facts.numa_node));
  }
  constexpr std::uint64_t kTakesSeconds = std::uint64_t{4} << 30;
  if (parts.gpu && pages.size() >= kTakesSeconds)
    log::info("pinning " + format_bytes(pages.size()) + " of host memory");
  if (auto region = accelerator_->pin(pages)) pinned_.push_back(std::move(region));
}

std::array<offload::Tier*, offload::kTiers> Engine::Impl::tiers() {
  return {&device_tier_, &host_tier_, nvme_tier_.get()};
}

void Engine::Impl::add_shards() {
  std::vector<std::size_t> per_value;
  for (const StateSpec& state_spec : states_) per_value.push_back(state_spec.elements_per_value);
  const std::vector<GroupSpecs> groups =
      shard_specs(compute_->layouts(), plan.divisions, plan.placement, config.param_type, plan.grad_type, states_);
  std::vector<std::optional<offload::ShardId>> local(groups.size());
  const std::vector<offload::ShardId> grads =
      config.training ? add_grads(groups, local) : std::vector<offload::ShardId>{};
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const GroupSpecs& specs = groups[g];
    zero::GroupShards shards;
    shards.partition = plan.divisions[g].partition;
    shards.first = plan.divisions[g].updated.first;
    offload::ShardSpec param = specs.param;
    if (specs.whole_param) {
      shards.whole_param = store_->add(*specs.whole_param);
      param.within = {*shards.whole_param, shards.first};
    }
    shards.param = store_->add(param);
    if (collectives_.node() != nullptr && shards.partition.param) {
      offload::ShardSpec part = param;
      part.name = compute_->layouts()[g].group().name + "/node param";
      part.numel = compute_->layouts()[g].numel() / collectives_.node()->world();
      part.host_numel = 0;
      if (part.home == TierKind::Nvme) part.home = TierKind::Host;
      shards.node_param = store_->add(part);
    }
    if (config.training && !trainable(g)) {
      zero::UpdateShards& update = updates_.emplace_back();
      update.param = shards.param;
      update.frozen = true;
    } else if (config.training) {
      shards.grad = grads[g];
      shards.local_grad = local[g];
      for (const offload::ShardSpec& spec : specs.states) shards.states.push_back(store_->add(spec));
      updates_.push_back(
          {shards.param,
           optimizer_.reads_param(config.param_type) ? offload::Access::ReadWrite : offload::Access::Write, shards.grad,
           shards.states, per_value});
      updates_.back().first = shards.first;
    }
    shards_.push_back(std::move(shards));
  }
}

std::vector<offload::ShardId> Engine::Impl::add_grads(const std::vector<GroupSpecs>& groups,
                                                      std::vector<std::optional<offload::ShardId>>& local) {
  std::vector<offload::ShardId> grads(groups.size());
  const auto owner = [&](std::size_t g) { return plan.grad_homes.empty() ? g : plan.grad_homes[g]; };
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (owner(g) != g || !trainable(g)) continue;
    offload::ShardSpec spec = groups[g].grad;
    if (groups[g].local_grad) {
      local[g] = store_->add(*groups[g].local_grad);
      if (spec.home != TierKind::Nvme) spec.within = {*local[g], plan.divisions[g].updated.first};
    }
    grads[g] = store_->add(spec);
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (owner(g) == g) continue;
    offload::ShardSpec spec = groups[g].grad;
    spec.within = {grads[owner(g)], 0};
    grads[g] = store_->add(spec);
  }
  return grads;
}

void Engine::Impl::choose_update_sites() {
  std::vector<zero::UpdateWork> work;
  for (const zero::UpdateShards& update : updates_) work.push_back(zero::update_work(*store_, update));
  zero::UpdateSites sites = sites_for(plan.updates.site, parts.update_costs, std::move(work));
  for (std::size_t g = 0; g < updates_.size(); ++g) updates_[g].sites = std::move(sites[g]);
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
    groups_.emplace_back(layouts[g], config.param_type, shards_[g], compute_->binding(g), *store_, *gather_slots_,
                         collectives_.weights(), streams(), counters_, collectives_.node());
  }
  const std::vector<zero::Visit> train = zero::train_visits(
      *compute_, static_cast<std::size_t>(config.training ? config.micro_batches : 0), plan.accumulation);
  zero::GradReducer::Options options{config.param_type, zero::count_contributions(train, layouts.size()),
                                     zero::leading_contributions(train, layouts.size()), grad_sum_slots_.get()};
  options.homes = plan.grad_homes;
  // One rank adds in that order anyway.
  if (config.rank_independent_sums && collectives_.shards().world() > 1)
    options.order = zero::GradReducer::Options::Order::ByMicroBatch;
  if (update_time() == zero::UpdateTime::DuringBackward) {
    options.not_finite = zero::GradReducer::Options::NotFinite::Fails;
  }
  reducer_ = std::make_unique<zero::GradReducer>(pointers, shards_, std::move(options), *store_, *grad_slots_,
                                                 grad_staging_ ? &*grad_staging_ : nullptr, collectives_.gradients(),
                                                 streams(), adder_, adder_math_, accelerator_->math(), counters_);
  device_updates_ = std::make_unique<zero::DeviceUpdates>(
      accelerator_->optimizer(), update_staging_,
      zero::DeviceUpdates::Streams{*update_in_, *update_stream_, *update_out_}, counters_, busy_);
  pipeline_ = std::make_unique<zero::OptimizerPipeline>(pointers, updates_, *store_, optimizer_, device_updates_.get(),
                                                        update_thread_, busy_, zero::update_lane(update_time()));
  const std::vector<bool> held = zero::last_groups(*compute_, plan.held_layers);
  runner_ = std::make_unique<zero::LayerRunner>(*compute_, groups_, *reducer_, streams(), plan.ahead, busy_, held,
                                                zero::reduce_order(collectives_.shards().world()));
  if (config.training) {
    train_visits_ = train;
    plan_pages({});
  }
  const std::vector<zero::Visit> forward = zero::forward_visits(*compute_);
  forward_schedule_ = std::make_shared<offload::Schedule>(
      "forward", zero::scheduled_accesses(*store_, shards_, forward, zero::plan_actions(forward, plan.ahead), nullptr));
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
  seconds.update_seconds_per_element = measured.optimizer_seconds / static_cast<double>(trained_parameters());
  const std::vector<offload::TimedAccess> accesses = zero::timed_accesses(
      *store_, shards_, train_visits_,
      zero::plan_actions(train_visits_, plan.ahead, update_time(), zero::last_groups(*compute_, plan.held_layers),
                         zero::reduce_order(collectives_.shards().world())),
      &updates_, seconds, update_time());
  const BlobStoreStats stats = nvme_stats();
  const DriveRates rates = stats.drives.empty() ? DriveRates{} : rates_of_drive(0, stats.drives.front());
  PagePlan pages =
      engine::plan_pages(accesses, rates, {plan.slots, static_cast<std::size_t>(plan.slot_bytes), plan.pins_at_once});
  train_schedule_ = std::move(pages.schedule);
  store_->set_look_ahead(config.look_ahead_bytes.value_or(pages.look_ahead_bytes));
}

}  // namespace strata::engine
