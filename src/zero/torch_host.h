// Types, settings and measurements of torch on the host.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>

#include "core/dtype.h"

namespace strata::zero {

// Of weights: F32, BF16 or F16. Throws: ContractViolation for another type.
at::ScalarType torch_type(DType type);

// Threads of torch's matrix products and elementwise operations, for work launched by the calling thread from now on.
void set_torch_threads(std::size_t threads);
std::size_t torch_threads();

// fp32 products per second over those of a 16-bit type, for a layer-sized product, measured on the calling thread (a
// few tens of milliseconds; some hundred for fp16 where the processor cannot multiply it). 1 where the probe cannot
// tell.
double fp32_speed_over(DType narrow);
// From which speed on products run in fp32: upcasting costs memory and time of its own, so it must be clearly faster.
inline constexpr double kUpcastPays = 1.5;

}  // namespace strata::zero
