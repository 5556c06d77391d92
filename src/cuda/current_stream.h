// The CUDA stream whose launch() runs the calling thread.
#pragma once

#include <cuda_runtime_api.h>

namespace strata::cuda {

// Null where no stream runs the caller.
cudaStream_t current_stream();

// Makes `stream` the calling thread's current one while it lives; the one before comes back afterwards.
class CurrentStream {
 public:
  explicit CurrentStream(cudaStream_t stream);
  ~CurrentStream();
  CurrentStream(const CurrentStream&) = delete;
  CurrentStream& operator=(const CurrentStream&) = delete;

 private:
  cudaStream_t previous_;
};

}  // namespace strata::cuda
