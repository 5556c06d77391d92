// The yardstick of `strata bench link`: copies between host and device by cudaMemcpyAsync and nothing else. Free of
// CUDA's headers, as backend.h.
#pragma once

#include <cstddef>

namespace strata::cuda {

// Each direction copies `bytes` bytes `repeats` times on a stream of its own; one whose destination is null is left
// out.
struct BareCopies {
  int device = 0;
  std::size_t bytes = 0;
  std::size_t repeats = 1;
  void* to_device = nullptr;          // device memory
  const void* from_host = nullptr;    // pinned
  void* to_host = nullptr;            // pinned
  const void* from_device = nullptr;  // device memory
};

}  // namespace strata::cuda

extern "C" {
// Seconds from the first call until all copies are complete, streams made before; below 0 with the reason in `why` (a
// text of at most `why_bytes` bytes with its end). The plug-in exports it as strata_cuda_bare_copies.
using strata_cuda_bare_copies_t = double(const strata::cuda::BareCopies* copies, char* why, std::size_t why_bytes);
}
