// What the driver and the system say of a GPU.
#pragma once

#include "cuda/backend.h"
#include "cuda/errors.h"

namespace strata::cuda {

// Throws: DeviceError. What the driver does not say keeps the value that means so.
DeviceFacts read_facts(DeviceContext& context);

}  // namespace strata::cuda
