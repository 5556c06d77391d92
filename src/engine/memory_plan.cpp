#include "engine/memory_plan.h"

#include <iomanip>
#include <sstream>

#include "core/bytes.h"
#include "core/error.h"
#include "engine/planner.h"

namespace strata::engine {
namespace {

using offload::TierKind;

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
  const std::size_t world = request.compute->layouts().front().world();
  if (request.param == TierKind::Nvme && world > 1 && request.division.stage < 3) {
    throw ConfigError("strata.placement.param: nvme on " + std::to_string(world) +
                      " ranks needs strata.zero_stage: 3; in stage " + std::to_string(request.division.stage) +
                      " every rank would write its own copy of all parameters to the drive");
  }
  if (request.param == TierKind::Nvme && request.shape.links.node_partition) {
    throw ConfigError(
        "strata.placement.param: nvme does not go with strata.slow_links.node_partition: true, which keeps a copy of "
        "the "
        "weights in memory to gather from: place the weights on host or device, or leave the partition off");
  }
  if (request.division.by_micro_batch && request.param_type != DType::F32) {
    throw ConfigError("strata.rank_independent_sums: true needs fp32 weights: set bf16: false and fp16: false");
  }
  if (request.division.by_micro_batch && request.training && !zero::same_sums_vertically(*request.compute, 2)) {
    throw ConfigError(
        "strata.rank_independent_sums: true does not hold for tied embeddings, whose gradient several layers of each "
        "micro-batch add to; set it to false");
  }
  if (request.division.by_micro_batch && world > 1) {
    if (request.grad == TierKind::Nvme) {
      throw ConfigError("strata.placement.grad: nvme does not go with strata.rank_independent_sums: true on " +
                        std::to_string(world) + " ranks; place the gradients on host or device");
    }
    if (request.division.stage == 0) {
      throw ConfigError("strata.rank_independent_sums: true needs strata.zero_stage: 1, 2 or 3");
    }
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
