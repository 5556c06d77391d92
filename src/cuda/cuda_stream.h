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
  // Called once for each stream, on the thread that destroys it: its own threads have ended and its work is done. False
  // where something goes on referring to the stream, which is then left to the process. Not called when the device is
  // lost; an exception is logged and taken for false.
  std::function<bool(cudaStream_t)> before_stream_ends;
};

// Two threads: one hands the work to CUDA, in order, and waits there for events of the host; the other watches what
// CUDA has done and completes events. Throws: DeviceError.
std::unique_ptr<Stream> make_cuda_stream(const std::string& name, const StreamHost& host);

}  // namespace strata::cuda
