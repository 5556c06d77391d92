#include "engine/memory_plan.h"

#include <algorithm>
#include <functional>
#include <iomanip>
#include <limits>
#include <sstream>

#include "core/bytes.h"
#include "core/error.h"
#include "offload/shard_store.h"
#include "zero/grad_homes.h"
#include "zero/grad_reducer.h"
#include "zero/update_parts.h"

namespace strata::engine {
namespace {

using namespace strata::literals;
using offload::ShardStore;
using offload::TierKind;

// Pieces must begin on the grid of the norm's blocks in every type: 64 Ki elements of 4 bytes.
constexpr std::uint64_t kSlotGranule = ShardMath::kNormBlock * 4;
constexpr std::uint64_t kLargestSlot = 16_MiB;
constexpr std::size_t kGradStagingSlots = 2;

std::size_t index(TierKind tier) {
  return static_cast<std::size_t>(tier);
}

// Sums that do not depend on the placement. A home is whole pages; only 8-bit states are not by themselves.
struct Totals {
  std::uint64_t param = 0;
  std::uint64_t grad = 0;
  std::uint64_t optimizer = 0;
  std::uint64_t optimizer_on_device = 0;  // were all of it at home there, where each shard begins a page
};

// The visits of a step in one order, and what follows from it.
struct Order {
  zero::Accumulation accumulation = zero::Accumulation::Horizontal;
  std::vector<zero::Visit> visits;
  std::uint64_t gathered = 0;           // bytes of parameters gathered in one step
  std::uint64_t grads_sent = 0;         // bytes of gradients that go to a host home in one step
  bool sums_on_device = false;          // before they go
  bool grads_need_staging = false;      // on a host home
  std::uint64_t grads_stored = 0;       // bytes that arrive at homes in one step
  std::uint64_t grads_added = 0;        // of these, to what is there already
  std::vector<std::size_t> grad_homes;  // in device or host memory
  std::uint64_t grad_home_bytes = 0;    // of these
  std::size_t open = 1;                 // micro-batches at the same time
};

PerTier in_mib(const PerTier& bytes) {
  return {ceil_div(bytes[0], 1_MiB), ceil_div(bytes[1], 1_MiB), ceil_div(bytes[2], 1_MiB)};
}

struct Candidate {
  MemoryPlan plan;
  double cost = 0;
};

class Planner {
 public:
  explicit Planner(const PlanRequest& request) : request_(request), training_(request.training) {
    for (const zero::FlatLayout& layout : request.compute->layouts()) {
      group_bytes_.push_back(layout.numel() * bytes_of(request.param_type));
      grad_bytes_.push_back(training_ ? layout.shard_numel() * bytes_of(grad_type()) : 0);
      const std::uint64_t numel = layout.shard_numel();
      sum_bytes_.push_back(numel * bytes_of(DType::F32));
      totals_.param += numel * bytes_of(request.param_type);
      if (!training_) continue;
      totals_.grad += numel * bytes_of(grad_type());
      for (const StateSpec& state : request.states) {
        totals_.optimizer += align_up(state.values_for(numel) * bytes_of(state.dtype), kPageBytes);
      }
      totals_.optimizer_on_device += device_bytes_of_states(layout, request.states);
    }
    asked_on_device_ = static_cast<std::uint64_t>(static_cast<double>(totals_.optimizer_on_device) *
                                                  request.optimizer_device_share.value_or(0));
    split_ = split_classes();
    const bool either = !request.accumulation && training_ && request.micro_batches > 1 && grad_type() == DType::F32 &&
                        zero::same_sums_vertically(*request.compute, request.micro_batches);
    orders_.push_back(order_of(request.accumulation.value_or(zero::Accumulation::Horizontal)));
    if (either) orders_.push_back(order_of(zero::Accumulation::Vertical));
  }

  // The cheapest plan that fits, or nothing. Gradients go to the drive only where memory forces them.
  std::optional<MemoryPlan> best() const {
    const auto on_nvme = [](const Placement& placement) { return placement.grad == TierKind::Nvme; };
    std::vector<Placement> all = placements();
    const auto last_resort = std::stable_partition(all.begin(), all.end(), std::not_fn(on_nvme));
    std::optional<MemoryPlan> plan = best_of({all.begin(), last_resort});
    return plan ? std::move(plan) : best_of({last_resort, all.end()});
  }

  // The plan whose needs exceed the budgets least: what a refusal recommends.
  MemoryPlan closest() const {
    std::optional<Candidate> best;
    for (const Order& order : orders_) {
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
    for (const Order& order : orders_) {
      MemoryPlan plan = minimal(order, best->plan.placement, zero::GatherAhead::None);
      const PerTier less = in_mib(plan.need);
      const PerTier need = in_mib(best->plan.need);
      if (less[0] <= need[0] && less[1] <= need[1] && less[2] <= need[2] && less != need) best->plan = std::move(plan);
    }
    return std::move(best->plan);
  }

 private:
  std::optional<MemoryPlan> best_of(std::span<const Placement> placements) const {
    std::optional<Candidate> best;
    for (const Order& order : orders_) {
      for (const Placement& placement : placements) {
        for (const zero::GatherAhead ahead : {zero::GatherAhead::One, zero::GatherAhead::None}) {
          MemoryPlan plan = minimal(order, placement, ahead);
          if (!fits(plan) && may_keep_states_on_device(plan)) keep_states_on_device(plan, order);
          if (!fits(plan)) continue;
          use_spare_host_memory(plan, order);
          use_spare_device_memory(plan, order);
          const double cost = cost_of(plan, order);
          if (!best || cost < best->cost) best = Candidate{std::move(plan), cost};
        }
      }
    }
    if (!best) return std::nullopt;
    return std::move(best->plan);
  }

  DType grad_type() const {
    return request_.micro_batches > 1 && request_.accumulate_in_fp32 ? DType::F32 : request_.param_type;
  }

  Order order_of(zero::Accumulation accumulation) const {
    const zero::LayerCompute& compute = *request_.compute;
    Order order;
    order.accumulation = accumulation;
    order.visits =
        training_ ? zero::train_visits(compute, request_.micro_batches, accumulation) : zero::forward_visits(compute);
    for (const zero::Action& action : zero::plan_actions(order.visits, zero::GatherAhead::None)) {
      if (action.kind == zero::Action::Kind::Unshard) order.gathered += group_bytes_[action.index];
    }
    if (!training_) return order;
    const std::vector<std::size_t> all = zero::count_contributions(order.visits, group_bytes_.size());
    const std::vector<std::size_t> first = zero::leading_contributions(order.visits, group_bytes_.size());
    for (std::size_t g = 0; g < all.size(); ++g) {
      order.grads_sent +=
          first[g] > 1 ? grad_bytes_[g] + (all[g] - first[g]) * group_bytes_[g] : all[g] * group_bytes_[g];
      order.sums_on_device |= first[g] > 1;
      order.grads_need_staging |= zero::GradReducer::needs_staging(request_.param_type, grad_type(), all[g], first[g]);
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
    if (accumulation == zero::Accumulation::Vertical) {
      order.open = std::max<std::size_t>(request_.micro_batches, 1);
    }
    return order;
  }

  std::vector<Placement> placements() const {
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
      for (const TierKind grad : choices(training_ ? request_.grad : untrained)) {
        for (const TierKind optimizer : choices(training_ ? request_.optimizer : untrained)) {
          result.push_back({param, grad, optimizer, param == TierKind::Nvme ? request_.param_host_share : 0,
                            optimizer == TierKind::Nvme ? request_.optimizer_host_share : 0,
                            optimizer == TierKind::Device ? 0 : asked_on_device_});
        }
      }
    }
    return result;
  }

  std::uint64_t smallest_slot() const {
    return request_.slot_bytes ? align_up(*request_.slot_bytes, kSlotGranule) : kSlotGranule;
  }

  // A class of shards: on its home, but for the share that stays in host memory, and what lies on the device besides.
  static void add_class(MemoryPlan& plan, std::string what, TierKind home, std::uint64_t bytes, std::uint64_t in_host,
                        std::uint64_t on_device = 0) {
    if (bytes + on_device == 0) return;
    PlanRow row{std::move(what), {}};
    row.bytes[index(home)] = bytes - in_host;
    row.bytes[index(TierKind::Host)] += in_host;
    row.bytes[index(TierKind::Device)] += on_device;
    for (std::size_t t = 0; t < offload::kTiers; ++t) plan.need[t] += row.bytes[t];
    plan.rows.push_back(std::move(row));
  }

  static void add_row(MemoryPlan& plan, std::string what, TierKind tier, std::uint64_t bytes) {
    if (bytes == 0) return;
    PlanRow row{std::move(what), {}};
    row.bytes[index(tier)] = bytes;
    plan.need[index(tier)] += bytes;
    plan.rows.push_back(std::move(row));
  }

  MemoryPlan minimal(const Order& order, const Placement& placement, zero::GatherAhead ahead) const {
    MemoryPlan plan;
    plan.accumulation = order.accumulation;
    plan.placement = placement;
    plan.ahead = ahead;
    plan.grad_type = grad_type();
    if (placement.grad != TierKind::Nvme) plan.grad_homes = order.grad_homes;
    if (request_.recomputed_layers) {
      plan.kept_graphs = graphs() - std::min<std::uint64_t>(*request_.recomputed_layers, graphs());
    }
    plan.budgets = request_.budgets;
    plan.slot_bytes = smallest_slot();
    plan.pins_at_once = std::max(ShardStore::kMinSlots, 2 + request_.states.size());
    plan.slots = plan.pins_at_once;
    const std::size_t window = ahead == zero::GatherAhead::One ? 2 : 1;
    std::vector<std::vector<std::size_t>> gathered, made;
    for (const zero::Visit& visit : order.visits) {
      gathered.push_back(visit.groups);
      made.push_back(visit.grad_groups);
    }
    if (placement.param != TierKind::Device) {
      plan.gather_slots = zero::plan_slot_classes(group_bytes_, gathered, window);
    }
    if (training_) plan.grad_slots = zero::plan_slot_classes(group_bytes_, made, window);
    if (placement.grad != TierKind::Device && order.grads_need_staging) plan.grad_staging_slots = kGradStagingSlots;
    // A home on the device holds the sum itself, unless it is narrower than the sum.
    if (placement.grad != TierKind::Device || grad_type() != DType::F32) {
      if (order.sums_on_device) plan.grad_sum_slots = zero::plan_slot_classes(sum_bytes_, made, window);
    }
    // Streaming for speed alone waits until it is known what memory is left.
    plan.updates.site = request_.update_site == UpdateSite::Auto ? UpdateSite::Device : request_.update_site;
    fill_rows(plan, order);
    return plan;
  }

  void fill_rows(MemoryPlan& plan, const Order& order) const {
    plan.rows.clear();
    plan.need = {};
    const HostShares shares = host_shares(plan.placement);
    const Resident resident = resident_states(plan.placement);
    plan.updates = plan_updates(update_shape(), plan.placement, plan.updates.site, plan.slot_bytes);
    add_class(plan, "parameters", plan.placement.param, totals_.param, shares.param);
    add_row(plan, "gradients", plan.placement.grad,
            plan.placement.grad == TierKind::Nvme ? totals_.grad : order.grad_home_bytes);
    add_class(plan, "optimizer states", plan.placement.optimizer, totals_.optimizer - resident.bytes, shares.optimizer,
              resident.on_device);
    add_row(plan, "gather buffers", TierKind::Device, zero::total_bytes(plan.gather_slots));
    add_row(plan, "gradient buffers", TierKind::Device, zero::total_bytes(plan.grad_slots));
    add_row(plan, "gradient sums", TierKind::Device, zero::total_bytes(plan.grad_sum_slots));
    add_row(plan, "activations", TierKind::Device,
            request_.activation_bytes + (order.open - 1) * request_.open_micro_batch_bytes);
    add_row(plan, "kept graphs", TierKind::Device, plan.kept_graphs * graph_bytes(order));
    add_row(plan, "update staging", TierKind::Device, zero::kUpdateStagingSets * plan.updates.staging_bytes);
    add_row(plan, "pages (staging and cache)", TierKind::Host, plan.slots * plan.slot_bytes);
    add_row(plan, "gradient staging", TierKind::Host, plan.grad_staging_slots * plan.slot_bytes);
    add_row(plan, "file buffer", TierKind::Host, kFileBufferBytes);
  }

  static bool fits(const MemoryPlan& plan) {
    for (std::size_t t = 0; t < offload::kTiers; ++t) {
      if (plan.need[t] > plan.budgets[t]) return false;
    }
    return true;
  }

  UpdateShape update_shape() const {
    return {request_.compute->layouts(), request_.param_type, request_.param_access, grad_type(), request_.states,
            request_.update_costs};
  }

  // States of whole groups on the device, although that is not their home.
  struct Resident {
    std::uint64_t bytes = 0;
    std::uint64_t on_device = 0;  // what they take there
  };
  Resident resident_states(const Placement& placement) const {
    Resident resident;
    if (placement.optimizer_device_bytes == 0) return resident;
    const std::vector<zero::FlatLayout>& layouts = request_.compute->layouts();
    const std::vector<bool> there = states_on_device(layouts, request_.states, placement.optimizer_device_bytes);
    for (std::size_t g = 0; g < layouts.size(); ++g) {
      if (!there[g]) continue;
      resident.on_device += device_bytes_of_states(layouts[g], request_.states);
      for (const StateSpec& state : request_.states) {
        resident.bytes += state.values_for(layouts[g].shard_numel()) * bytes_of(state.dtype);
      }
    }
    return resident;
  }

  // Bytes of split classes that stay in host memory.
  struct HostShares {
    std::uint64_t param = 0;
    std::uint64_t optimizer = 0;
  };
  // Of classes at home on nvme, whatever the plan then chooses.
  HostShares split_classes() const {
    HostShares shares;
    const Placement on_nvme{
        TierKind::Nvme,  TierKind::Host, TierKind::Nvme, request_.param_host_share, request_.optimizer_host_share,
        asked_on_device_};
    for (const GroupSpecs& group :
         shard_specs(request_.compute->layouts(), on_nvme, request_.param_type, grad_type(), request_.states)) {
      shares.param += host_bytes(group.param);
      for (const offload::ShardSpec& state : group.states) shares.optimizer += host_bytes(state);
    }
    return shares;
  }
  HostShares host_shares(const Placement& placement) const {
    return {placement.param == TierKind::Nvme ? split_.param : 0,
            placement.optimizer == TierKind::Nvme ? split_.optimizer : 0};
  }

  std::uint64_t on_nvme(const MemoryPlan& plan) const {
    const HostShares shares = host_shares(plan.placement);
    return (plan.placement.param == TierKind::Nvme ? totals_.param - shares.param : 0) +
           (plan.placement.grad == TierKind::Nvme ? totals_.grad : 0) +
           (plan.placement.optimizer == TierKind::Nvme
                ? totals_.optimizer - resident_states(plan.placement).bytes - shares.optimizer
                : 0);
  }

  // Larger slots make larger requests, and larger copies of what is streamed.
  void grow_slots(MemoryPlan& plan, const Order& order) const {
    if (request_.slot_bytes) return;
    const std::uint64_t spare = plan.budgets[index(TierKind::Host)] - plan.need[index(TierKind::Host)];
    // At least 48 slots, so that reading ahead, updating and writing back overlap.
    const std::uint64_t parts = 48 + plan.grad_staging_slots;
    const std::uint64_t wanted = (spare + plan.slots * plan.slot_bytes) / parts / kSlotGranule * kSlotGranule;
    plan.slot_bytes = std::clamp(wanted, kSlotGranule, kLargestSlot);
    // Staging of updates on the device grows with them.
    while (plan.slot_bytes > kSlotGranule && !fits_with(plan, order)) {
      plan.slot_bytes = std::max(plan.slot_bytes / 2 / kSlotGranule * kSlotGranule, kSlotGranule);
    }
    fill_rows(plan, order);
  }

  // More slots cache what would be read again.
  void use_spare_host_memory(MemoryPlan& plan, const Order& order) const {
    if (on_nvme(plan) > 0 || plan.updates.streamed_share > 0) grow_slots(plan, order);
    if (on_nvme(plan) > 0) {
      const std::uint64_t left = plan.budgets[index(TierKind::Host)] - plan.need[index(TierKind::Host)];
      const std::uint64_t useful = on_nvme(plan) / plan.slot_bytes + 64;
      plan.slots += std::min(left / plan.slot_bytes, useful);
      fill_rows(plan, order);
    }
    const std::uint64_t pages = plan.slots * plan.slot_bytes;
    // What is read ahead is not in the cache: half of the pages at most, and no more than covers a drive's latency.
    plan.look_ahead_bytes = request_.look_ahead_bytes.value_or(std::min<std::uint64_t>(pages / 2, 256_MiB));
  }

  // Graphs first: what fits need not be computed twice, and computing is what a step has most of. Then staging, which
  // serves every update, and at last states, each of which saves only its own way over a drive or a link.
  void use_spare_device_memory(MemoryPlan& plan, const Order& order) const {
    if (!request_.recomputed_layers && graph_bytes(order) > 0) {
      plan.kept_graphs = std::min<std::uint64_t>(spare_on_device(plan) / graph_bytes(order), graphs());
      fill_rows(plan, order);
    }
    if (!training_) return;
    if (request_.update_site == UpdateSite::Auto) {
      MemoryPlan streaming = plan;
      streaming.updates.site = UpdateSite::Auto;
      fill_rows(streaming, order);
      if (streaming.updates.streamed_share > 0 && on_nvme(plan) == 0 && fits(streaming)) grow_slots(streaming, order);
      if (streaming.updates.streamed_share > 0 && fits(streaming)) plan = std::move(streaming);
    }
    const bool pays =
        plan.placement.optimizer == TierKind::Nvme || states_on_device_pay(update_shape(), plan.placement);
    if (pays && may_keep_states_on_device(plan)) keep_states_on_device(plan, order);
  }

  // Whether spare device memory may take states: where their home was left open.
  bool may_keep_states_on_device(const MemoryPlan& plan) const {
    return training_ && !request_.optimizer && !request_.optimizer_device_share &&
           request_.update_site != UpdateSite::Host && plan.placement.optimizer != TierKind::Device;
  }

  // As many as the spare memory holds.
  void keep_states_on_device(MemoryPlan& plan, const Order& order) const {
    MemoryPlan keeping = plan;
    // Their weights and gradients may need staging that nothing else did.
    const Placement all{plan.placement.param, plan.placement.grad, TierKind::Device};
    const UpdatePlan there = plan_updates(update_shape(), all, UpdateSite::Device, plan.slot_bytes);
    const std::uint64_t staging = plan.updates.staging_bytes > 0 ? 0 : zero::kUpdateStagingSets * there.staging_bytes;
    const std::uint64_t spare = spare_on_device(plan);
    if (spare <= staging) return;
    keeping.placement.optimizer_device_bytes = resident_states(plan.placement).on_device + spare - staging;
    fill_rows(keeping, order);
    if (fits(keeping)) plan = std::move(keeping);
  }

  static std::uint64_t spare_on_device(const MemoryPlan& plan) {
    const std::uint64_t budget = plan.budgets[index(TierKind::Device)];
    return budget - std::min(budget, plan.need[index(TierKind::Device)]);
  }

  // Layers that can keep their graphs: all between the first and the last one.
  std::size_t graphs() const { return training_ ? request_.compute->layers() - 2 : 0; }
  std::uint64_t graph_bytes(const Order& order) const { return order.open * request_.graph_bytes; }

  bool fits_with(MemoryPlan plan, const Order& order) const {
    fill_rows(plan, order);
    return fits(plan);
  }

  // Seconds of an imagined machine whose drive moves 2 GB/s and whose link moves 20: only the order of the plans
  // matters.
  double cost_of(MemoryPlan& plan, const Order& order) const {
    const std::uint64_t resident = on_nvme(plan);
    // What pages pass through keeps nothing (offload/look_ahead.h).
    const std::size_t passing = 2 * plan.pins_at_once + 2;
    const std::uint64_t cache = plan.slots > passing ? (plan.slots - passing) * plan.slot_bytes : 0;
    const double missing =
        resident == 0 ? 0.0 : 1.0 - std::min(1.0, static_cast<double>(cache) / static_cast<double>(resident));
    const HostShares shares = host_shares(plan.placement);
    std::uint64_t read = 0, written = 0;
    if (plan.placement.param == TierKind::Nvme) {
      const double on_drive =
          1 - static_cast<double>(shares.param) / static_cast<double>(std::max<std::uint64_t>(totals_.param, 1));
      read += static_cast<std::uint64_t>(static_cast<double>(order.gathered) * on_drive);
      written += training_ ? totals_.param - shares.param : 0;
    }
    if (plan.placement.grad == TierKind::Nvme) {
      read += order.grads_added + totals_.grad;
      written += order.grads_stored;
    }
    if (plan.placement.optimizer == TierKind::Nvme) {
      const std::uint64_t on_drive = totals_.optimizer - resident_states(plan.placement).bytes - shares.optimizer;
      read += on_drive;
      written += on_drive;
    }
    plan.nvme_read_per_step = static_cast<std::uint64_t>(static_cast<double>(read) * missing);
    plan.nvme_written_per_step = static_cast<std::uint64_t>(static_cast<double>(written) * missing);
    plan.link_per_step = (plan.placement.param != TierKind::Device ? order.gathered : 0) +
                         (plan.placement.grad != TierKind::Device ? order.grads_sent : 0) + plan.updates.link_bytes;
    const double seconds = static_cast<double>(plan.nvme_read_per_step + plan.nvme_written_per_step) / 2e9 +
                           static_cast<double>(plan.link_per_step) / 20e9;
    // Without a gather ahead compute waits for every copy.
    return plan.ahead == zero::GatherAhead::One ? seconds : 2 * seconds + 1e-6;
  }

  const PlanRequest& request_;
  const bool training_;
  std::vector<std::uint64_t> group_bytes_;  // flat, in the group's type
  std::vector<std::uint64_t> grad_bytes_;   // of a rank's shard at home
  std::vector<std::uint64_t> sum_bytes_;    // of a rank's shard in fp32
  Totals totals_;
  std::uint64_t asked_on_device_ = 0;  // of states, in whole groups
  HostShares split_;
  std::vector<Order> orders_;  // that the plan may choose from
};

std::string budget_line(const MemoryPlan& plan) {
  std::ostringstream out;
  const PerTier mib = in_mib(plan.need);
  out << "device: " << mib[0] << "MiB, host: " << mib[1] << "MiB";
  if (mib[2] > 0) out << ", nvme: " << mib[2] << "MiB";
  return out.str();
}

}  // namespace

MemoryPlan make_plan(const PlanRequest& request) {
  STRATA_EXPECTS(request.compute != nullptr, "a plan needs a model");
  const bool wants_nvme =
      request.param == TierKind::Nvme || request.grad == TierKind::Nvme || request.optimizer == TierKind::Nvme;
  if (wants_nvme && request.budgets[index(TierKind::Nvme)] == 0) {
    throw ConfigError(
        "placement asks for nvme, but there is no nvme tier: set strata.nvme.paths to a folder on the drive");
  }
  const Planner planner(request);
  if (std::optional<MemoryPlan> plan = planner.best()) return std::move(*plan);
  const MemoryPlan closest = planner.closest();
  std::ostringstream out;
  out << "this run does not fit its budgets:\n" << to_table(closest);
  out << "The smallest that would do: strata.budgets: {" << budget_line(closest) << "}";
  out << " with strata.placement: {param: " << name_of(closest.placement.param)
      << ", grad: " << name_of(closest.placement.grad) << ", optimizer: " << name_of(closest.placement.optimizer)
      << "}.";
  if (closest.need[0] > closest.budgets[0]) {
    out << "\nA smaller per_device_train_batch_size or max_seq_length lowers the activations.";
  }
  if (closest.need[0] > closest.budgets[0] && closest.updates.streamed_share > 0) {
    out << "\nWith strata.update_site: device nothing is streamed, which saves up to "
        << format_bytes(zero::kUpdateStagingSets * closest.updates.staging_bytes) << " of staging on the device.";
  }
  if (request.budgets[index(TierKind::Nvme)] == 0) {
    out << "\nWith strata.nvme.paths set, parameters and optimizer states can move to a drive.";
  }
  std::uint64_t need = 0, have = 0;
  for (std::size_t t = 0; t < offload::kTiers; ++t) {
    if (closest.need[t] <= closest.budgets[t]) continue;
    need += closest.need[t];
    have += closest.budgets[t];
  }
  throw OutOfBudget(out.str(), need, have);
}

std::string to_table(const MemoryPlan& plan) {
  std::ostringstream out;
  const auto line = [&out](const std::string& what, const PerTier& bytes) {
    out << "  " << std::left << std::setw(28) << what << std::right;
    for (const std::uint64_t b : bytes) out << std::setw(14) << (b == 0 ? "-" : format_bytes(b));
    out << "\n";
  };
  out << "  " << std::left << std::setw(28) << "" << std::right << std::setw(14) << "device" << std::setw(14) << "host"
      << std::setw(14) << "nvme"
      << "\n";
  for (const PlanRow& row : plan.rows) line(row.what, row.bytes);
  line("needed", plan.need);
  line("budget", plan.budgets);
  return out.str();
}

}  // namespace strata::engine
