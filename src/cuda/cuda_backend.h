// The plug-in's one product: a GPU behind the ports of core.
#pragma once

#include <memory>
#include <string>

#include "cuda/backend.h"

namespace strata::cuda {

// Usable devices, up to the first that is too old; in `why`, why there are none or no more. Makes no context.
int count_devices(std::string& why);

// Throws: DeviceError; also for a GPU that the kernels are not built for.
std::unique_ptr<Backend> open_backend(const BackendOptions& options);

}  // namespace strata::cuda
