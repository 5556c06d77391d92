// The CUDA stream on which work of the calling thread is queued. A stream's launch() sets it while its caller runs.
#pragma once

#include <cuda_runtime_api.h>

namespace strata::cuda {

// Of this thread; null, which is CUDA's default stream, where none was set.
cudaStream_t current_stream();

// Makes `stream` current on this thread until the end of the scope, then the one before. Does not own it.
class CurrentStream {
 public:
  explicit CurrentStream(cudaStream_t stream);
  CurrentStream(const CurrentStream&) = delete;
  CurrentStream& operator=(const CurrentStream&) = delete;
  ~CurrentStream();

 private:
  cudaStream_t before_;
};

}  // namespace strata::cuda
