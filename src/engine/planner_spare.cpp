// Planner: what memory that is left is used for, and what a plan costs.
#include <algorithm>

#include "core/bytes.h"
#include "engine/planner.h"
#include "zero/update_parts.h"

namespace strata::engine {

using namespace strata::literals;
using offload::TierKind;

namespace {

constexpr std::uint64_t kLargestSlot = 16_MiB;

}  // namespace

std::uint64_t Planner::on_nvme(const MemoryPlan& plan) const {
  const HostShares shares = host_shares(plan.placement);
  return (plan.placement.param == TierKind::Nvme ? totals_.param - shares.param : 0) +
         (plan.placement.grad == TierKind::Nvme ? totals_.grad : 0) +
         (plan.placement.optimizer == TierKind::Nvme
              ? totals_.optimizer - resident_states(plan.placement).bytes - shares.optimizer
              : 0);
}

void Planner::grow_slots(MemoryPlan& plan, const StepOrder& order) const {
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

void Planner::use_spare_host_memory(MemoryPlan& plan, const StepOrder& order) const {
  const Placement& homes = plan.placement;
  const bool on_host =
      homes.param == TierKind::Host || homes.grad == TierKind::Host || homes.optimizer == TierKind::Host;
  const bool copies = request_.device_behind_link && on_host;
  if (on_nvme(plan) > 0 || plan.updates.streamed_share > 0 || copies) grow_slots(plan, order);
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

void Planner::hold_layers(MemoryPlan& plan, StepOrder& order) const {
  const auto holding = [&](std::size_t layers) {
    MemoryPlan held = plan;
    hold(order, layers);
    held.held_layers = order.held_layers;
    held.sent_per_step = order.sent;
    held.gather_slots = gather_slots(order, plan.placement, plan.ahead);
    fill_rows(held, order);
    return held;
  };
  std::size_t fit = 0, end = request_.compute->layers() + 1;  // fits and does not, or is not there
  while (end - fit > 1) {
    const std::size_t layers = fit + (end - fit) / 2;
    (fits(holding(layers)) ? fit : end) = layers;
  }
  plan = holding(fit);
}

void Planner::use_spare_device_memory(MemoryPlan& plan, StepOrder& order) const {
  if (!request_.recomputed_layers && graph_bytes(order) > 0) {
    plan.kept_graphs = std::min<std::uint64_t>(spare_on_device(plan) / graph_bytes(order), graphs());
    fill_rows(plan, order);
  }
  if (!training_) return;
  if (world() > 1 && request_.division.stage == 3 && !request_.held_layers) hold_layers(plan, order);
  if (request_.update_site == UpdateSite::Auto) {
    MemoryPlan streaming = plan;
    streaming.updates.site = UpdateSite::Auto;
    fill_rows(streaming, order);
    if (streaming.updates.streamed_share > 0 && on_nvme(plan) == 0 && fits(streaming)) grow_slots(streaming, order);
    if (streaming.updates.streamed_share > 0 && fits(streaming)) plan = std::move(streaming);
  }
  const bool pays = plan.placement.optimizer == TierKind::Nvme || states_on_device_pay(update_shape(), plan.placement);
  if (pays && may_keep_states_on_device(plan)) keep_states_on_device(plan, order);
}

bool Planner::may_keep_states_on_device(const MemoryPlan& plan) const {
  return training_ && !request_.optimizer && !request_.optimizer_device_share &&
         request_.update_site != UpdateSite::Host && plan.placement.optimizer != TierKind::Device;
}

void Planner::keep_states_on_device(MemoryPlan& plan, const StepOrder& order) const {
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

std::uint64_t Planner::spare_on_device(const MemoryPlan& plan) {
  const std::uint64_t budget = plan.budgets[index(TierKind::Device)];
  return budget - std::min(budget, plan.need[index(TierKind::Device)]);
}

bool Planner::fits_with(MemoryPlan plan, const StepOrder& order) const {
  fill_rows(plan, order);
  return fits(plan);
}

double Planner::cost_of(MemoryPlan& plan, const StepOrder& order) const {
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
    // Frozen ones are as much in host memory as others.
    const double trained =
        static_cast<double>(trained_params_) / static_cast<double>(std::max<std::uint64_t>(totals_.param, 1));
    written += trained_params_ - static_cast<std::uint64_t>(static_cast<double>(shares.param) * trained);
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

}  // namespace strata::engine
