// From what a user writes to what an engine takes.
#pragma once

#include "engine/engine_config.h"
#include "engine/run_config.h"

namespace strata::engine {

EngineConfig engine_config(const RunConfig& run);

}  // namespace strata::engine
