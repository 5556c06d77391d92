#include "bench/step_bounds.h"

#include <algorithm>
#include <array>

#include "core/statistics.h"

namespace strata::bench {
namespace {

using engine::StepSummary;

// t* of a step: the larger of what the processor and what the drive need alone. On the host device layers and updates
// share the cores.
engine::ResourceTime ideal_of(const StepSummary& memory, const StepSummary& nvme, const engine::DriveRates& rates) {
  const std::array<engine::ResourceTime, 2> resources{
      engine::ResourceTime{"compute", memory.forward_seconds + memory.backward_seconds + memory.optimizer_seconds},
      engine::ResourceTime{"nvme", engine::drive_seconds(nvme.nvme_read, nvme.nvme_written, rates)}};
  return engine::binding_resource(resources);
}

// The least for these bytes while the update waits for the norm, which is known when backward ends: backward with its
// reads, then forward and the update with theirs, and the first layer's update, which nothing can hide
// (exact clipping, without guessing the norm, and without memory to read states into while backward runs).
double optimum_of(const StepSummary& memory, const StepSummary& nvme, const engine::DriveRates& rates,
                  std::uint64_t state_bytes, std::int64_t layers) {
  const std::uint64_t states = std::min(nvme.nvme_read, state_bytes);
  const std::uint64_t weights = (nvme.nvme_read - states) / 2;  // once in forward, once in backward
  const double backward = std::max(memory.backward_seconds, engine::drive_seconds(weights, 0, rates));
  const double update_drive = engine::drive_seconds(states, nvme.nvme_written, rates);
  const double rest = std::max(memory.forward_seconds + memory.optimizer_seconds,
                               engine::drive_seconds(states + weights, nvme.nvme_written, rates));
  return backward + rest + std::max(memory.optimizer_seconds, update_drive) / static_cast<double>(layers + 2);
}

}  // namespace

void add_bounds(const engine::Engine& engine, const engine::DriveRates& rates, const std::vector<StepSummary>& memory,
                const std::vector<StepSummary>& steps, nlohmann::json& result) {
  std::uint64_t state_bytes = 0;
  for (const engine::PlanRow& row : engine.memory_plan().rows) {
    if (row.what == "optimizer states") state_bytes += row.bytes[1] + row.bytes[2];
  }
  std::vector<double> ideals, to_ideal, optima, to_optimum;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const engine::ResourceTime ideal = ideal_of(memory[i], steps[i], rates);
    ideals.push_back(ideal.seconds);
    to_ideal.push_back(steps[i].seconds / ideal.seconds);
    result["binding_link"] = ideal.name;
    optima.push_back(optimum_of(memory[i], steps[i], rates, state_bytes, engine.model_config().num_hidden_layers));
    to_optimum.push_back(steps[i].seconds / optima.back());
  }
  result["drive_rates"] = {{"read", rates.read}, {"write", rates.write}, {"mixed", rates.mixed}};
  result["ideal_seconds"] = median(ideals);
  result["ratio_to_ideal"] = median(to_ideal);
  result["ratio_to_ideal_mad"] = mad(to_ideal);
  result["optimum_seconds"] = median(optima);
  result["ratio_to_optimum"] = median(to_optimum);
  result["ratio_to_optimum_mad"] = mad(to_optimum);
}

}  // namespace strata::bench
