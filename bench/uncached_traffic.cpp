#include "bench/uncached_traffic.h"

#include "engine/parts.h"
#include "engine/shard_specs.h"
#include "zero/visits.h"

namespace strata::bench {
namespace {

std::uint64_t bytes_on_drive(const offload::ShardSpec& spec) {
  return spec.home == offload::TierKind::Nvme ? (spec.numel - spec.host_numel) * bytes_of(spec.dtype) : 0;
}

// Reads of a weight beyond its gathers.
std::int64_t reads_of_update(const engine::EngineConfig& config) {
  const bool reads = reads_param(config.optimizer, config.param_type);
  if (!config.overlap_update) return reads ? 1 : 0;
  const bool under_forward = config.adamw.max_grad_norm > 0 || config.delay_update;
  if (under_forward) return reads ? 0 : -1;  // the first gather finds what the update has read, or made
  return 0;                                  // the update finds what the last gather has read
}

}  // namespace

DriveTraffic uncached_traffic(const engine::Engine& engine) {
  engine::EngineConfig config = engine.config();
  const engine::MemoryPlan& plan = engine.memory_plan();
  if (config.compute == engine::Compute::Auto) config.compute = engine::Compute::ParamType;  // it moves the same
  const engine::ModelParts parts = engine::make_model_parts(config);
  const zero::LayerCompute& compute = *parts.compute;
  const std::vector<zero::Visit> visits =
      zero::train_visits(compute, static_cast<std::size_t>(config.micro_batches), plan.accumulation);
  std::vector<std::int64_t> reads(compute.layouts().size(), reads_of_update(config));
  for (const zero::Action& action : zero::plan_actions(visits, plan.ahead, zero::UpdateTime::AfterBackward,
                                                       zero::last_groups(compute, plan.held_layers))) {
    if (action.kind == zero::Action::Kind::Unshard) ++reads[action.index];
  }
  DriveTraffic traffic;
  const std::vector<engine::GroupSpecs> groups =
      engine::shard_specs(compute.layouts(), plan.divisions, plan.placement, config.param_type, plan.grad_type,
                          state_specs(config.optimizer, config.param_type));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    traffic.read += static_cast<std::uint64_t>(reads[g]) * bytes_on_drive(groups[g].param);
    traffic.written += bytes_on_drive(groups[g].param);
    for (const offload::ShardSpec& state : groups[g].states) {
      traffic.read += bytes_on_drive(state);
      traffic.written += bytes_on_drive(state);
    }
  }
  return traffic;
}

}  // namespace strata::bench
