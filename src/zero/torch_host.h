// Settings and measurements of torch on the host.
#pragma once

#include <cstddef>

namespace strata::zero {

// Threads of torch's matrix products and elementwise operations, for work launched by the calling thread from now on.
void set_torch_threads(std::size_t threads);
std::size_t torch_threads();

// fp32 products per second over bf16 ones, for a layer-sized product, measured on the calling thread (a few tens of
// milliseconds). 1 where the probe cannot tell.
double fp32_over_bf16_speed();

}  // namespace strata::zero
