// What updates and copies were measured to take on this machine.
#pragma once

#include <cstddef>
#include <optional>

#include "core/optimizer_config.h"
#include "zero/update_sites.h"

namespace strata::engine {

struct UpdateProbe {
  OptimizerConfig optimizer = {};
  DType param_type = DType::BF16;
  std::size_t threads = 0;                        // of updates on the host; 0: all
  std::optional<int> cuda_device = std::nullopt;  // absent: the host is the device, whose cores are the processor's own
};

// Measures an update on the host, one on the device and a copy over the link, in a few milliseconds on the host and a
// few tens of them on a GPU. Throws: DeviceError.
zero::UpdateCosts measure_update_costs(const UpdateProbe& probe);

}  // namespace strata::engine
