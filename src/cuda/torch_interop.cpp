#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "core/error.h"
#include "cuda/device_shares.h"
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
  // Torch looks for CUDA once, in a backward on the host too, and what is loaded later it does not see.
  if (!at::globalContext().hasCUDART()) {
    throw DeviceError("torch has looked for CUDA before the plug-in was loaded, and found none: open the GPU first");
  }
  try {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
  } catch (const c10::Error& error) {
    throw DeviceError(std::string("torch cannot start on this device: ") + error.what_without_backtrace());
  }
  // The other one takes memory that it does not know for its own, and knows no limit of the plan's.
  if (const std::string allocator = c10::cuda::CUDACachingAllocator::name(); allocator != "native") {
    throw DeviceError("torch's allocator here must be its own (native), not " + allocator +
                      ": take `backend` out of PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF");
  }
}

void on_stream_thread(int device, cudaStream_t stream) {
  const auto index = static_cast<c10::DeviceIndex>(device);
  try {
    c10::cuda::set_device(index);
    c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(stream, index));
  } catch (const c10::Error& error) {
    throw DeviceError(std::string("torch does not take a stream of this device: ") + error.what_without_backtrace());
  }
}

// Of this stream alone: another engine's thread may be about to launch a product with the workspace of its own.
void free_workspaces(at::cuda::WorkspaceMapWithMutex& workspaces, cudaStream_t stream) {
  const std::unique_lock lock(workspaces.mutex);
  std::erase_if(workspaces.map, [stream](const auto& entry) { return std::get<1>(entry.first) == stream; });
}

// [Note: what torch keeps of a stream]
// A block of the caching allocator belongs to the stream that it was allocated on, also when it is free, and a segment
// that grows waits for that stream when it is unmapped: after cudaStreamDestroy for a handle that is none or another
// stream's. The workspaces of matrix products are such blocks, one for each handle of cuBLAS (this thread's, and that
// of autograd's thread, which outlives the stream) and stream; cuBLASLt's is the same, or a map of its own. What else
// knows the stream is either set again before its next use (the handles of cuBLAS, the current streams of autograd's
// threads) or knows events only (the memory that torch pins to read a scalar, with no event at all).
bool before_stream_ends(int device, cudaStream_t stream) {
  free_workspaces(at::cuda::cublas_handle_stream_to_workspace(), stream);
  free_workspaces(at::cuda::cublaslt_handle_stream_to_workspace(), stream);
  // Of every stream: the allocator has no narrower call. What others have cached they allocate again.
  c10::cuda::CUDACachingAllocator::emptyCache();
  const auto left = c10::cuda::CUDACachingAllocator::snapshot({0, 0}, /*include_traces=*/false).segments;
  return std::none_of(left.begin(), left.end(), [device, stream](const auto& segment) {
    return segment.device == device && segment.stream == stream;
  });
}

void limit(int device, std::optional<std::uint64_t> bytes) {
  const auto index = static_cast<c10::DeviceIndex>(device);
  const std::uint64_t total = at::cuda::getDeviceProperties(index)->totalGlobalMem;
  c10::cuda::CUDACachingAllocator::setMemoryFraction(fraction_of(bytes.value_or(total), total), index);
}

}  // namespace

TorchPlace torch_place() {
  return TorchPlace::Device;
}

const TorchPart* torch_part() {
  static constexpr TorchPart part{start, on_stream_thread, before_stream_ends, limit};
  return &part;
}

}  // namespace strata::cuda
