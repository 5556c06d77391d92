// Host memory that exists, pinned for CUDA.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "cuda/backend.h"
#include "cuda/errors.h"

namespace strata::cuda {

// As Backend::pin(): for all devices, at the same address. The context outlives what this returns.
std::unique_ptr<PinnedRegion> pin_pages(DeviceContext& context, std::span<std::byte> pages);

}  // namespace strata::cuda
