// The plug-in's one product: a GPU behind the ports of core.
#pragma once

#include <memory>
#include <string>

#include "cuda/backend.h"

namespace strata::cuda {

// Devices that the runtime finds; where there are none, 0 and the reason in `why`.
int count_devices(std::string& why);

// Throws: DeviceError; also for a GPU that the kernels are not built for.
std::unique_ptr<Backend> open_backend(const BackendOptions& options);

}  // namespace strata::cuda
