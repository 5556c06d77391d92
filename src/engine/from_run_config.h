// From what a user writes to what an engine takes.
#pragma once

#include <optional>

#include "engine/engine_config.h"
#include "engine/run_config.h"

namespace strata::engine {

// A GPU that auto finds, or cuda asks for, is the first one; with several ranks on a machine each then takes its own.
EngineConfig engine_config(const RunConfig& run);

// The GPU of a run with that choice, or the host.
std::optional<int> cuda_device_of(DeviceChoice choice);

}  // namespace strata::engine
