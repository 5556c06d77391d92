// What ranks must agree on before they train together.
#pragma once

#include "core/communicator.h"
#include "engine/engine_config.h"
#include "engine/memory_plan.h"
#include "zero/layer_compute.h"

namespace strata::engine {

// The budgets of the rank that has least of each tier, so that all make the same plan.
PerTier smallest_budgets(Communicator& comm, const PerTier& budgets);

// Compares what decides the order of the collectives and the numbers: model, settings, plan. Blocks until all ranks
// have called it. Throws: CommError that names the ranks that differ from the first one, and in what.
void require_same_run(Communicator& comm, const EngineConfig& config, const zero::LayerCompute& compute,
                      const MemoryPlan& plan);

}  // namespace strata::engine
