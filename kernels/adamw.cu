// Fused AdamW over one run of a flat shard. Memory-bound: 28 bytes per parameter in bf16, each touched once, in 128-bit
// accesses; so a thread handles a group of 8 and the grid strides.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/adamw.h"

namespace strata::kernels {
namespace {

constexpr int kThreads = 256;
// Enough blocks to fill each multiprocessor to its 2,048 threads; more would only queue.
constexpr std::int64_t kBlocksPerMultiprocessor = 8;

template <typename Param, typename Grad>
__global__ void __launch_bounds__(kThreads) adamw_kernel(UpdateConstants constants, AdamwRun run, RunShape shape) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  adamw_thread<Param, Grad>(constants, run, shape, thread, static_cast<std::int64_t>(gridDim.x) * blockDim.x);
}

template <typename Param, typename Grad>
cudaError_t launch(const UpdateConstants& constants, const AdamwRun& run, cudaStream_t stream) {
  int device = 0;
  int multiprocessors = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
      error != cudaSuccess) {
    return error;
  }
  const RunShape shape = shape_of<Param, Grad>(run);
  const std::int64_t items = std::max(shape.groups, run.numel - shape.groups * kGroup);
  const std::int64_t blocks =
      std::min((items + kThreads - 1) / kThreads, kBlocksPerMultiprocessor * std::int64_t{multiprocessors});
  adamw_kernel<Param, Grad><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(constants, run, shape);
  return cudaGetLastError();
}

// Gradients have the parameter's type (one micro-batch) or fp32 (several).
template <typename Param>
cudaError_t launch_for_grad(int grad_type, const UpdateConstants& constants, const AdamwRun& run, cudaStream_t stream) {
  if (grad_type == encoding::F32::kIndex) return launch<Param, encoding::F32>(constants, run, stream);
  if (grad_type == Param::kIndex) return launch<Param, Param>(constants, run, stream);
  return cudaErrorInvalidValue;
}

}  // namespace
}  // namespace strata::kernels

extern "C" int strata_cuda_adamw(const strata::UpdateConstants* constants, const strata::kernels::AdamwRun* run,
                                 int param_type, int grad_type, void* stream) {
  using namespace strata::kernels;
  namespace encoding = strata::encoding;
  if (run->numel == 0) return cudaSuccess;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (param_type) {
    case encoding::F32::kIndex:
      return launch_for_grad<encoding::F32>(grad_type, *constants, *run, cuda_stream);
    case encoding::Bf16::kIndex:
      return launch_for_grad<encoding::Bf16>(grad_type, *constants, *run, cuda_stream);
    case encoding::F16::kIndex:
      return launch_for_grad<encoding::F16>(grad_type, *constants, *run, cuda_stream);
    default:
      return cudaErrorInvalidValue;
  }
}

extern "C" const char* strata_cuda_error_string(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}

extern "C" int strata_cuda_device_count() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  return error == cudaSuccess ? devices : -static_cast<int>(error);
}
