// What the plug-in does for torch, where it is built with it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "cuda/backend.h"

namespace strata::cuda {

struct TorchPart {
  // Once a device is opened, before torch first uses it: results that do not change from run to run, and an allocator
  // that wastes little by fragments. What the user has set in the environment stays.
  void (*start)(int device);
  // On each stream's thread: torch's work of that thread goes to `stream`.
  void (*on_stream_thread)(int device, cudaStream_t stream);
  // Once nothing is queued on `stream` any more and its thread has ended: torch lets go of the memory that it keeps for
  // it. False where tensors still lie in such memory.
  bool (*before_stream_ends)(int device, cudaStream_t stream);
  // What torch's allocator may hold of the device's memory; nothing: all.
  void (*limit)(int device, std::optional<std::uint64_t> bytes);
};

TorchPlace torch_place();
// Null where torch does not compute on the device.
const TorchPart* torch_part();

}  // namespace strata::cuda
