// Planner: the orders and placements that there are, and what each needs.
#include "engine/planner.h"

#include <algorithm>
#include <functional>

#include "core/bytes.h"
#include "core/error.h"
#include "offload/shard_store.h"
#include "zero/grad_homes.h"
#include "zero/grad_reducer.h"
#include "zero/update_parts.h"

namespace strata::engine {

using namespace strata::literals;
using offload::ShardStore;
using offload::TierKind;

namespace {

constexpr std::size_t kGradStagingSlots = 2;

struct Candidate {
  MemoryPlan plan;
  double cost = 0;
};

}  // namespace

PerTier in_mib(const PerTier& bytes) {
  return {ceil_div(bytes[0], 1_MiB), ceil_div(bytes[1], 1_MiB), ceil_div(bytes[2], 1_MiB)};
}

Planner::Planner(const PlanRequest& request) : request_(request), training_(request.training) {
  std::uint64_t flat = 0, of_params = 0;
  for (const zero::FlatLayout& layout : request.compute->layouts()) {
    const std::uint64_t numel = layout.param_numel();
    flat += layout.numel();
    of_params += numel;
    whole_states_ += numel * bytes_of(request.param_type);
    if (!training_ || !layout.group().trainable) continue;
    whole_states_ += numel * bytes_of(grad_type());
    for (const StateSpec& state : request.states) whole_states_ += state.values_for(numel) * bytes_of(state.dtype);
  }
  padding_ = 1 - static_cast<double>(of_params) / static_cast<double>(flat);
  for (const zero::GroupDivision& group : zero::divide(request.compute->layouts(), request.division)) {
    group_bytes_.push_back(group.numel * bytes_of(request.param_type));
    const std::uint64_t numel = group.updated.numel;
    const bool trained = training_ && group.trainable;
    grad_bytes_.push_back(trained ? numel * bytes_of(grad_type()) : 0);
    sum_bytes_.push_back(group.numel * bytes_of(DType::F32));
    const std::uint64_t param = group.partition.param ? numel * bytes_of(request.param_type) : group_bytes_.back();
    totals_.param += param;
    whole_params_ += group.partition.param ? 0 : group_bytes_.back();
    if (request.shape.links.node_partition && group.partition.param) {
      node_params_ += align_up(group_bytes_.back() / request.shape.per_node, kPageBytes);
    }
    if (!trained) continue;
    trained_params_ += param;
    totals_.grad += numel * bytes_of(grad_type());
    for (const StateSpec& state : request.states) {
      totals_.optimizer += align_up(state.values_for(numel) * bytes_of(state.dtype), kPageBytes);
    }
    totals_.optimizer_on_device += device_bytes_of_states(group, request.states);
  }
  asked_on_device_ = static_cast<std::uint64_t>(static_cast<double>(totals_.optimizer_on_device) *
                                                request.optimizer_device_share.value_or(0));
  split_ = split_classes();
  // Several ranks add a vertical sum in another order.
  const bool either = !request.accumulation && training_ && world() == 1 && request.micro_batches > 1 &&
                      grad_type() == DType::F32 && zero::same_sums_vertically(*request.compute, request.micro_batches);
  orders_.push_back(order_of(request.accumulation.value_or(zero::Accumulation::Horizontal)));
  if (either) orders_.push_back(order_of(zero::Accumulation::Vertical));
}

std::optional<MemoryPlan> Planner::best() const {
  const auto on_nvme = [](const Placement& placement) { return placement.grad == TierKind::Nvme; };
  std::vector<Placement> all = placements();
  const auto last_resort = std::stable_partition(all.begin(), all.end(), std::not_fn(on_nvme));
  std::optional<MemoryPlan> plan = best_of({all.begin(), last_resort});
  return plan ? std::move(plan) : best_of({last_resort, all.end()});
}

MemoryPlan Planner::closest() const {
  std::optional<Candidate> best;
  for (const StepOrder& order : orders_) {
    for (const Placement& placement : placements()) {
      MemoryPlan plan = minimal(order, placement, zero::GatherAhead::None);
      double missing = 0;
      for (std::size_t t = 0; t < offload::kTiers; ++t) {
        if (plan.need[t] > plan.budgets[t]) missing += static_cast<double>(plan.need[t] - plan.budgets[t]);
      }
      if (!best || missing < best->cost) best = Candidate{std::move(plan), missing};
    }
  }
  // With the same homes another order may do with less of each tier, in the unit in which it is recommended.
  for (const StepOrder& order : orders_) {
    MemoryPlan plan = minimal(order, best->plan.placement, zero::GatherAhead::None);
    const PerTier less = in_mib(plan.need);
    const PerTier need = in_mib(best->plan.need);
    if (less[0] <= need[0] && less[1] <= need[1] && less[2] <= need[2] && less != need) best->plan = std::move(plan);
  }
  return std::move(best->plan);
}

std::optional<MemoryPlan> Planner::best_of(std::span<const Placement> placements) const {
  std::optional<Candidate> best;
  for (const StepOrder& order : orders_) {
    for (const Placement& placement : placements) {
      for (const zero::GatherAhead ahead : {zero::GatherAhead::One, zero::GatherAhead::None}) {
        MemoryPlan plan = minimal(order, placement, ahead);
        if (!fits(plan) && may_keep_states_on_device(plan)) keep_states_on_device(plan, order);
        if (!fits(plan)) continue;
        use_spare_host_memory(plan, order);
        StepOrder held = order;
        use_spare_device_memory(plan, held);
        const double cost = cost_of(plan, held);
        if (!best || cost < best->cost) best = Candidate{std::move(plan), cost};
      }
    }
  }
  if (!best) return std::nullopt;
  return std::move(best->plan);
}

DType Planner::grad_type() const {
  return request_.micro_batches > 1 && request_.accumulate_in_fp32 ? DType::F32 : request_.param_type;
}

StepOrder Planner::order_of(zero::Accumulation accumulation) const {
  const zero::LayerCompute& compute = *request_.compute;
  StepOrder order;
  order.accumulation = accumulation;
  order.visits =
      training_ ? zero::train_visits(compute, request_.micro_batches, accumulation) : zero::forward_visits(compute);
  order.round = training_ ? zero::train_visits(compute, std::min<std::size_t>(request_.micro_batches, 2), accumulation)
                          : order.visits;
  if (!training_) {
    order.divisions = zero::divide(compute.layouts(), request_.division);
    order.contributions.assign(group_bytes_.size(), 0);
    order.summed_first.assign(group_bytes_.size(), 1);
    hold(order, 0);
    return order;
  }
  std::vector<std::size_t>& all = order.contributions;
  std::vector<std::size_t>& first = order.summed_first;
  all = zero::count_contributions(order.visits, group_bytes_.size());
  first = zero::leading_contributions(order.visits, group_bytes_.size());
  // One by one, in the order of the global batch.
  const std::size_t rows = request_.division.by_micro_batch ? world() : 1;
  if (rows > 1) std::fill(first.begin(), first.end(), 1);
  order.divisions = zero::divide(compute.layouts(), request_.division, all, first);
  hold(order, request_.held_layers.value_or(0));
  for (std::size_t g = 0; g < all.size(); ++g) {
    if (all[g] == 0) continue;  // frozen
    const zero::GroupDivision& group = order.divisions[g];
    // Where ranks add up first only a row of what is reduced goes home.
    const bool row = group.partition.grad && rows == 1;
    const std::uint64_t one = (row ? group.updated.numel : group.numel) * bytes_of(request_.param_type);
    const std::uint64_t sum = group.adds_locally ? group.numel * bytes_of(grad_type()) : grad_bytes_[g];
    order.grads_sent += first[g] > 1 ? sum + (all[g] - first[g]) * one : all[g] * one;
    if (group.adds_locally) {
      order.local_grad_bytes += sum;
      order.grads_in_these += grad_bytes_[g];
      order.grads_sent += sum + grad_bytes_[g];
    }
    order.sums_on_device |= first[g] > 1;
    order.grads_need_staging |=
        zero::GradReducer::needs_staging(request_.param_type, grad_type(), all[g] * rows, first[g]);
  }
  for (const std::vector<zero::GradArrival>& after_visit : zero::grad_arrivals(order.visits, group_bytes_.size())) {
    for (const zero::GradArrival& arrival : after_visit) {
      order.grads_stored += grad_bytes_[arrival.group];
      order.grads_added += offload::reads(arrival.access) ? grad_bytes_[arrival.group] : 0;
    }
  }
  if (request_.early_updates) order.grad_homes = zero::grad_homes_in_turn(order.visits, grad_bytes_);
  for (std::size_t g = 0; g < grad_bytes_.size(); ++g) {
    if (order.grad_homes.empty() || order.grad_homes[g] == g) order.grad_home_bytes += grad_bytes_[g];
  }
  order.grad_home_bytes += order.local_grad_bytes - order.grads_in_these;
  if (accumulation == zero::Accumulation::Vertical) {
    order.open = std::max<std::size_t>(request_.micro_batches, 1);
  }
  return order;
}

void Planner::hold(StepOrder& order, std::size_t layers) const {
  order.held_layers = std::min(layers, request_.compute->layers());
  std::vector<std::size_t> gathers(group_bytes_.size(), 0);
  order.gathered = 0;
  for (const zero::Action& action :
       zero::plan_actions(order.visits, zero::GatherAhead::None, zero::UpdateTime::AfterBackward, held_groups(order))) {
    if (action.kind != zero::Action::Kind::Unshard) continue;
    order.gathered += group_bytes_[action.index];
    ++gathers[action.index];
  }
  order.sent = {};
  for (std::size_t g = 0; g < gathers.size(); ++g) order.sent += sent_for(g, order, gathers[g]);
}

std::vector<zero::SlotClass> Planner::gather_slots(const StepOrder& order, const Placement& placement,
                                                   zero::GatherAhead ahead) const {
  std::vector<std::vector<std::size_t>> gathered = zero::unsharded_groups(order.round, held_groups(order));
  for (std::vector<std::size_t>& groups : gathered) {
    std::erase_if(groups, [&](std::size_t g) { return gathered_in_place(order.divisions[g], placement); });
  }
  return zero::plan_slot_classes(group_bytes_, gathered, ahead == zero::GatherAhead::One ? 2 : 1);
}

SentBytes Planner::sent_for(std::size_t g, const StepOrder& order, std::size_t gathers) const {
  const zero::GroupDivision& group = order.divisions[g];
  SentBytes sent;
  if (request_.shape.ranks == 1) return sent;
  if (group.partition.states) {
    // What a rank keeps whole is gathered once after an update, as is what the node has a partition of.
    const bool keeps = !group.partition.param || request_.shape.links.node_partition;
    const std::size_t after_update = group.trainable ? 1 : 0;
    sent += sent_by_gather(request_.shape, group.numel, request_.param_type) * (keeps ? after_update : gathers);
    if (keeps && group.partition.param) {
      sent += sent_by_node_gather(request_.shape, group.numel, request_.param_type) * (gathers - after_update);
    }
  }
  const std::size_t contributions = order.contributions[g];
  const std::size_t first = order.summed_first[g];
  if (contributions == 0) return sent;
  const Reduced kept = group.partition.states ? Reduced::Row : Reduced::Whole;
  // A sum of several goes in the home's type.
  const DType sum_type = first > 1 || group.adds_locally ? grad_type() : request_.param_type;
  sent += sent_by_reduce(request_.shape, group.numel, sum_type, kept);
  if (!group.adds_locally) {
    sent += sent_by_reduce(request_.shape, group.numel, request_.param_type, kept) * (contributions - first);
  }
  return sent;
}

bool Planner::gathered_in_place(const zero::GroupDivision& group, const Placement& placement) const {
  return placement.param == TierKind::Device && (world() == 1 || !group.partition.param);
}

std::vector<Placement> Planner::placements() const {
  std::vector<Placement> result;
  const bool has_nvme = request_.budgets[index(TierKind::Nvme)] > 0;
  const auto choices = [&](std::optional<TierKind> wanted) {
    if (wanted) return std::vector<TierKind>{*wanted};
    std::vector<TierKind> all{TierKind::Device, TierKind::Host};
    if (has_nvme) all.push_back(TierKind::Nvme);
    return all;
  };
  const auto untrained = std::optional(TierKind::Host);  // nothing of the kind exists
  for (const TierKind param : choices(request_.param)) {
    // Each rank would keep a copy of all; groups that stage 3 leaves whole are few.
    if (param == TierKind::Nvme && world() > 1 && request_.division.stage < 3) continue;
    // The schedule of pages does not know which gathers the node answers.
    if (param == TierKind::Nvme && request_.shape.links.node_partition) continue;
    for (const TierKind grad : choices(training_ ? request_.grad : untrained)) {
      // Each page would be read and written once per rank.
      if (grad == TierKind::Nvme && world() > 1 && request_.division.by_micro_batch) continue;
      for (const TierKind optimizer : choices(training_ ? request_.optimizer : untrained)) {
        result.push_back({param, grad, optimizer, param == TierKind::Nvme ? request_.param_host_share : 0,
                          optimizer == TierKind::Nvme ? request_.optimizer_host_share : 0,
                          optimizer == TierKind::Device ? 0 : asked_on_device_});
      }
    }
  }
  return result;
}

std::uint64_t Planner::smallest_slot() const {
  return request_.slot_bytes ? align_up(*request_.slot_bytes, kSlotGranule) : kSlotGranule;
}

void Planner::add_class(MemoryPlan& plan, std::string what, TierKind home, std::uint64_t bytes, std::uint64_t in_host,
                        std::uint64_t on_device) {
  if (bytes + on_device == 0) return;
  PlanRow row{std::move(what), {}};
  row.bytes[index(home)] = bytes - in_host;
  row.bytes[index(TierKind::Host)] += in_host;
  row.bytes[index(TierKind::Device)] += on_device;
  for (std::size_t t = 0; t < offload::kTiers; ++t) plan.need[t] += row.bytes[t];
  plan.rows.push_back(std::move(row));
}

void Planner::add_row(MemoryPlan& plan, std::string what, TierKind tier, std::uint64_t bytes) {
  if (bytes == 0) return;
  PlanRow row{std::move(what), {}};
  row.bytes[index(tier)] = bytes;
  plan.need[index(tier)] += bytes;
  plan.rows.push_back(std::move(row));
}

MemoryPlan Planner::minimal(const StepOrder& order, const Placement& placement, zero::GatherAhead ahead) const {
  MemoryPlan plan;
  plan.accumulation = order.accumulation;
  plan.placement = placement;
  plan.ahead = ahead;
  plan.grad_type = grad_type();
  plan.divisions = order.divisions;
  plan.sent_per_step = order.sent;
  if (placement.grad != TierKind::Nvme) plan.grad_homes = order.grad_homes;
  if (request_.recomputed_layers) {
    plan.kept_graphs = graphs() - std::min<std::uint64_t>(*request_.recomputed_layers, graphs());
  }
  plan.budgets = request_.budgets;
  plan.slot_bytes = smallest_slot();
  plan.pins_at_once = std::max(ShardStore::kMinSlots, 2 + request_.states.size());
  plan.slots = plan.pins_at_once;
  const std::size_t window = ahead == zero::GatherAhead::One ? 2 : 1;
  std::vector<std::vector<std::size_t>> made;
  for (const zero::Visit& visit : order.round) made.push_back(visit.grad_groups);
  plan.held_layers = order.held_layers;
  plan.gather_slots = gather_slots(order, placement, ahead);
  if (training_) plan.grad_slots = zero::plan_slot_classes(group_bytes_, made, window);
  if (placement.grad != TierKind::Device && order.grads_need_staging) plan.grad_staging_slots = kGradStagingSlots;
  // A home on the device holds the sum itself, unless it is narrower than the sum or the ranks' sums come to it; a
  // local sum in host memory comes back to the device.
  const bool home_sums = placement.grad == TierKind::Device && grad_type() == DType::F32 && world() == 1;
  const bool local_in_host = order.local_grad_bytes > 0 && placement.grad != TierKind::Device;
  if ((order.sums_on_device && !home_sums) || local_in_host) {
    plan.grad_sum_slots = zero::plan_slot_classes(sum_bytes_, made, window);
  }
  // Streaming for speed alone waits until it is known what memory is left.
  plan.updates.site = request_.update_site == UpdateSite::Auto ? UpdateSite::Device : request_.update_site;
  fill_rows(plan, order);
  return plan;
}

void Planner::fill_rows(MemoryPlan& plan, const StepOrder& order) const {
  plan.rows.clear();
  plan.need = {};
  const HostShares shares = host_shares(plan.placement);
  const Resident resident = resident_states(plan.placement);
  plan.updates = plan_updates(update_shape(), plan.placement, plan.updates.site, plan.slot_bytes);
  add_class(plan, "parameters", plan.placement.param, totals_.param, shares.param);
  add_row(plan, "parameters of the node", plan.placement.param == TierKind::Device ? TierKind::Device : TierKind::Host,
          node_params_);
  add_row(plan, "gradients", plan.placement.grad,
          plan.placement.grad == TierKind::Nvme ? totals_.grad : order.grad_home_bytes);
  if (plan.placement.grad == TierKind::Nvme) {
    add_row(plan, "gradients of one rank", TierKind::Host, order.local_grad_bytes);
  }
  add_class(plan, "optimizer states", plan.placement.optimizer, totals_.optimizer - resident.bytes, shares.optimizer,
            resident.on_device);
  plan.states_bytes = 0;
  for (const PlanRow& row : plan.rows) plan.states_bytes += row.bytes[0] + row.bytes[1] + row.bytes[2];
  plan.whole_states_bytes = whole_states_;
  plan.padding = padding_;
  add_row(plan, "gather buffers", TierKind::Device, zero::total_bytes(plan.gather_slots));
  add_row(plan, "gradient buffers", TierKind::Device, zero::total_bytes(plan.grad_slots));
  add_row(plan, "gradient sums", TierKind::Device, zero::total_bytes(plan.grad_sum_slots));
  const std::uint64_t activations = request_.activation_bytes + (order.open - 1) * request_.open_micro_batch_bytes;
  const std::uint64_t graphs = plan.kept_graphs * graph_bytes(order);
  add_row(plan, "activations", TierKind::Device, activations);
  add_row(plan, "kept graphs", TierKind::Device, graphs);
  plan.torch_bytes = activations + graphs;
  add_row(plan, "collectives", TierKind::Device, collective_scratch_bytes(request_.shape));
  add_row(plan, "update staging", TierKind::Device, zero::kUpdateStagingSets * plan.updates.staging_bytes);
  add_row(plan, "pages (staging and cache)", TierKind::Host, plan.slots * plan.slot_bytes);
  add_row(plan, "gradient staging", TierKind::Host, plan.grad_staging_slots * plan.slot_bytes);
  add_row(plan, "communicators", TierKind::Host, request_.communicator_bytes);
  add_row(plan, "file buffer", TierKind::Host, kFileBufferBytes);
}

bool Planner::fits(const MemoryPlan& plan) {
  for (std::size_t t = 0; t < offload::kTiers; ++t) {
    if (plan.need[t] > plan.budgets[t]) return false;
  }
  return true;
}

UpdateShape Planner::update_shape() const {
  return {training_,   orders_.front().divisions, request_.param_type,  request_.param_access,
          grad_type(), request_.states,           request_.update_costs};
}

Planner::Resident Planner::resident_states(const Placement& placement) const {
  Resident resident;
  if (placement.optimizer_device_bytes == 0) return resident;
  const std::vector<zero::GroupDivision>& groups = orders_.front().divisions;
  const std::vector<bool> there = states_on_device(groups, request_.states, placement.optimizer_device_bytes);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!there[g]) continue;
    resident.on_device += device_bytes_of_states(groups[g], request_.states);
    for (const StateSpec& state : request_.states) {
      resident.bytes += state.values_for(groups[g].updated.numel) * bytes_of(state.dtype);
    }
  }
  return resident;
}

Planner::HostShares Planner::split_classes() const {
  HostShares shares;
  const Placement on_nvme{
      TierKind::Nvme,  TierKind::Host, TierKind::Nvme, request_.param_host_share, request_.optimizer_host_share,
      asked_on_device_};
  const std::vector<zero::FlatLayout>& layouts = request_.compute->layouts();
  for (const GroupSpecs& group : shard_specs(layouts, zero::divide(layouts, request_.division), on_nvme,
                                             request_.param_type, grad_type(), request_.states)) {
    shares.param += host_bytes(group.param);
    for (const offload::ShardSpec& state : group.states) shares.optimizer += host_bytes(state);
  }
  shares.param += whole_params_;
  return shares;
}

Planner::HostShares Planner::host_shares(const Placement& placement) const {
  return {placement.param == TierKind::Nvme ? split_.param : 0,
          placement.optimizer == TierKind::Nvme ? split_.optimizer : 0};
}

}  // namespace strata::engine
