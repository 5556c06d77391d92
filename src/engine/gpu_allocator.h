// What torch's allocator on a GPU holds beside the tensors of a model. Sizes that torch and cuBLAS document, and what
// is added to them; unproven: no GPU has run this.
#pragma once

#include <algorithm>
#include <cstdint>

namespace strata::engine {

// Once, whatever the tensors are.
constexpr std::uint64_t gpu_allocator_bytes() {
  constexpr std::uint64_t kMiB = 1 << 20;
  // CUBLAS_WORKSPACE_CONFIG=:4096:8, which torch_interop.cpp sets: 8 buffers of 4 MiB, allocated by torch at the first
  // product of a handle of cuBLAS on a stream, and used by cuBLASLt as well. Two handles: of the compute stream's
  // thread, for forward, and of autograd's, for backward.
  constexpr std::uint64_t kProducts = 2 * 8 * 4 * kMiB;
  // A stream has a segment for tensors up to 1 MiB and one for larger ones, which grow by 2 and by 20 MiB: the last of
  // these may be all but empty. Two streams: compute and comm.
  constexpr std::uint64_t kLastPages = 2 * (2 + 20) * kMiB;
  // More was assumed before these parts had names. It stays until a GPU has shown that they are all: too little ends a
  // run in the middle, too much keeps a graph less.
  return std::max(kProducts + kLastPages, 160 * kMiB);
}

// What tensors of `bytes` take with the holes between them: segments that grow are said to have few, and nobody says
// how many. Rounding of each tensor to 512 bytes is in the activation bound.
constexpr std::uint64_t with_gpu_fragments(std::uint64_t bytes) {
  return bytes + bytes / 10;
}

}  // namespace strata::engine
