// The C names of the plug-in (backend.h). No exception leaves through them.
#include <cstddef>
#include <exception>
#include <string>
#include <string_view>

#include "cuda/cuda_backend.h"
#include "cuda/torch_part.h"

namespace {

void put(std::string_view text, char* why, std::size_t why_bytes) {
  if (why == nullptr || why_bytes == 0) return;
  why[text.copy(why, why_bytes - 1)] = '\0';
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) strata_cuda_device_count_t strata_cuda_device_count;
__attribute__((visibility("default"))) strata_cuda_open_t strata_cuda_open;
__attribute__((visibility("default"))) strata_cuda_torch_place_t strata_cuda_torch_place;

int strata_cuda_device_count(char* why, std::size_t why_bytes) {
  try {
    std::string reason;
    const int count = strata::cuda::count_devices(reason);
    put(reason, why, why_bytes);
    return count;
  } catch (const std::exception& error) {
    put(error.what(), why, why_bytes);
    return 0;
  }
}

strata::cuda::TorchPlace strata_cuda_torch_place() {
  return strata::cuda::torch_place();
}

strata::cuda::Backend* strata_cuda_open(const strata::cuda::BackendOptions* options, char* why, std::size_t why_bytes) {
  try {
    return strata::cuda::open_backend(*options).release();
  } catch (const std::exception& error) {
    put(error.what(), why, why_bytes);
    return nullptr;
  }
}
}
