#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdlib>

#include "cuda/torch_part.h"

namespace strata::cuda {
namespace {

void start(int device) {
  // cuBLAS chooses among algorithms by what its workspace allows; this size makes that the same choice every time.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  // Segments that grow: layers of different sizes share them, so less is reserved than the sum of the largest.
  if (std::getenv("PYTORCH_ALLOC_CONF") == nullptr) setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", 0);
  // Strictly: with warnings only, attention's backward keeps its variants that add in any order.
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);  // nothing here reads what it has not written
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
}

void on_stream_thread(int device, cudaStream_t stream) {
  const auto index = static_cast<c10::DeviceIndex>(device);
  c10::cuda::set_device(index);
  c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(stream, index));
}

void limit(int device, std::uint64_t bytes) {
  const auto index = static_cast<c10::DeviceIndex>(device);
  const std::uint64_t total = at::cuda::getDeviceProperties(index)->totalGlobalMem;
  const double fraction = static_cast<double>(bytes) / static_cast<double>(total);
  c10::cuda::CUDACachingAllocator::setMemoryFraction(std::min(fraction, 1.0), index);
}

}  // namespace

TorchPlace torch_place() {
  return TorchPlace::Device;
}

const TorchPart* torch_part() {
  static constexpr TorchPart part{start, on_stream_thread, limit};
  return &part;
}

}  // namespace strata::cuda
