// A CUDA stream as strata::Stream.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <string>

#include "core/device.h"
#include "cuda/cuda_event.h"
#include "cuda/errors.h"

namespace strata::cuda {

// What the streams of one device share. Outlives them.
struct StreamHost {
  DeviceContext& context;
  EventPool& events;
  // Called once on each stream's thread, before any work of it.
  std::function<void(cudaStream_t)> on_stream_thread;
};

// Two threads: one hands the work to CUDA, in order, and waits there for events of the host; the other watches what
// CUDA has done and completes events. Throws: DeviceError.
std::unique_ptr<Stream> make_cuda_stream(const std::string& name, const StreamHost& host);

}  // namespace strata::cuda
