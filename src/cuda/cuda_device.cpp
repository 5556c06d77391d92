#include "cuda/cuda_device.h"

#include <utility>

#include "core/bytes.h"
#include "core/log.h"

namespace strata::cuda {

CudaDevice::CudaDevice(CudaDeviceOptions options)
    : name_("cuda:" + std::to_string(options.index)),
      budget_("device memory", options.budget_bytes),
      context_(options.index),
      events_(context_),
      memory_(context_, options.budget_bytes),
      stream_host_{context_, events_, std::move(options.on_stream_thread), std::move(options.before_stream_ends)} {}

CudaDevice::~CudaDevice() {
  if (budget_.used() == 0) return;
  log::error(name_ + " ends while buffers of " + format_bytes(budget_.used()) + " still exist");
}

std::unique_ptr<Stream> CudaDevice::create_stream(std::string name) {
  return make_cuda_stream(name, stream_host_);
}

Buffer CudaDevice::allocate(std::size_t bytes, MemoryTag tag) {
  return memory_.allocate(budget_, bytes, tag);
}

}  // namespace strata::cuda
