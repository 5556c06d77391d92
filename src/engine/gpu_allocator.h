// What torch's allocator on a GPU holds beside the tensors of a model. Sizes that torch and cuBLAS document, and what
// is added to them; unproven: no GPU has run this.
#pragma once

#include <cstdint>

#include "core/bytes.h"

namespace strata::engine {

namespace gpu_allocator {

using namespace strata::literals;

// CUBLAS_WORKSPACE_CONFIG=:4096:8, which torch_interop.cpp sets: 8 buffers of 4 MiB, allocated by torch at the first
// product of a handle of cuBLAS on a stream. cuBLASLt uses the same ones.
inline constexpr std::uint64_t kProductWorkspace = 8 * 4_MiB;
// One of the compute stream's thread, for forward, and one of autograd's, for backward.
inline constexpr std::uint64_t kHandles = 2;
// A stream has a segment for tensors up to 1 MiB and one for larger ones, which grow by these pages: the last page of
// each may be all but empty.
inline constexpr std::uint64_t kSmallPage = 2_MiB;
inline constexpr std::uint64_t kLargePage = 20_MiB;
// Torch allocates on two: compute and comm.
inline constexpr std::uint64_t kStreams = 2;
inline constexpr std::uint64_t kNamed = kHandles * kProductWorkspace + kStreams * (kSmallPage + kLargePage);
// The named parts are less than what was assumed before they had names. The larger value stays until a GPU has shown
// that they are all: too little ends a run in the middle, too much keeps a graph less.
inline constexpr std::uint64_t kUnnamed = 160_MiB - kNamed;
// Holes between tensors of different sizes: segments that grow are said to have few, and nobody says how many. One part
// in so many. Rounding of each tensor to 512 bytes is in the activation bound.
inline constexpr std::uint64_t kFragments = 10;

}  // namespace gpu_allocator

// Once, whatever the tensors are.
inline constexpr std::uint64_t kGpuAllocatorBytes = gpu_allocator::kNamed + gpu_allocator::kUnnamed;

// What tensors of `bytes` take with the holes between them.
constexpr std::uint64_t with_gpu_fragments(std::uint64_t bytes) {
  return bytes + bytes / gpu_allocator::kFragments;
}

}  // namespace strata::engine
