// What an engine needs before it can plan: the model without weights, and the budgets.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cuda/backend.h"
#include "engine/collectives.h"
#include "engine/engine_config.h"
#include "engine/memory_plan.h"
#include "hf/model_config.h"
#include "zero/layer_compute.h"

namespace strata::engine {

// A machine to plan for: this one, whose memory and devices are asked, or another one, of which only the budgets say
// anything.
enum class Machine : std::uint8_t { This, Other };

// What the plan must know of a GPU.
struct Gpu {
  cuda::DeviceFacts facts;
  cuda::TorchPlace torch = cuda::TorchPlace::Device;
};

struct ModelParts {
  hf::ModelConfig config;
  std::optional<Gpu> gpu;                       // the one to compute on, where it was asked
  std::unique_ptr<zero::LayerCompute> compute;  // bound to no memory yet
  Compute chosen = Compute::ParamType;          // never Auto
  RankShape shape;
  std::uint64_t activation_bytes = 0;
  std::uint64_t open_micro_batch_bytes = 0;
  std::uint64_t graph_bytes = 0;
  zero::UpdateCosts update_costs;  // measured where something depends on them
};

// Reads config.json and makes the layers. Probes the host's products when config.compute is Auto, and what an update
// takes when config.update_site is. Throws: DataError, ConfigError, DeviceError.
ModelParts make_model_parts(const EngineConfig& config, Machine machine = Machine::This);

// The parameters of a model, without making it compute. Throws: DataError.
std::vector<zero::GroupDecl> parameter_groups(const hf::ModelConfig& config);

// The budgets asked for; what was left open is measured: RAM that is available, less a margin for the process itself,
// what is free on the GPU, and free disk. Throws: ConfigError; OutOfBudget when the budgets asked for exceed this
// machine, unless the run is planned for others.
PerTier resolve_budgets(const EngineConfig& config, const std::optional<Gpu>& gpu, Machine machine = Machine::This);

// When a run updates its groups.
zero::UpdateTime update_time(const EngineConfig& config);

// Which row of the flat layouts this rank has.
std::size_t shard_rank(const EngineConfig& config);

PlanRequest plan_request(const EngineConfig& config, const ModelParts& parts, const PerTier& budgets);

}  // namespace strata::engine
