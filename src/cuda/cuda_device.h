// One GPU as strata::Device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/device.h"
#include "cuda/cuda_event.h"
#include "cuda/cuda_memory.h"
#include "cuda/cuda_stream.h"
#include "cuda/errors.h"

namespace strata::cuda {

struct CudaDeviceOptions {
  int index = 0;
  std::uint64_t budget_bytes = 0;
  // Called once on the thread of each stream, before any work of it; an exception fails the stream.
  std::function<void(cudaStream_t)> on_stream_thread;
  std::function<bool(cudaStream_t)> before_stream_ends = {};  // as StreamHost says
};

// Thread-safety: create_stream and allocate from any thread; each stream as Stream says. Streams and buffers must not
// outlive the device; events may.
class CudaDevice final : public Device {
 public:
  // Throws: DeviceError.
  explicit CudaDevice(CudaDeviceOptions options);
  ~CudaDevice() override;

  std::string_view name() const override { return name_; }
  std::unique_ptr<Stream> create_stream(std::string name) override;
  Buffer allocate(std::size_t bytes, MemoryTag tag) override;
  Budget& budget() override { return budget_; }
  DeviceContext& context() { return context_; }

 private:
  const std::string name_;
  Budget budget_;
  DeviceContext context_;
  EventPool events_;
  CudaMemory memory_;
  const StreamHost stream_host_;
};

}  // namespace strata::cuda
