#include "cuda/bare_copies.h"

#include <cuda_runtime_api.h>

#include <array>
#include <chrono>
#include <cstdio>

namespace strata::cuda {
namespace {

// Two streams, destroyed with this.
struct Streams {
  std::array<cudaStream_t, 2> all{};
  ~Streams() {
    for (const cudaStream_t stream : all) {
      if (stream != nullptr) (void)cudaStreamDestroy(stream);  // what is wrong has been seen by the copies
    }
  }
};

cudaError_t run(const BareCopies& copies, double& seconds) {
  if (const cudaError_t error = cudaSetDevice(copies.device); error != cudaSuccess) return error;
  Streams streams;
  for (cudaStream_t& stream : streams.all) {
    if (const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); error != cudaSuccess) {
      return error;
    }
  }
  const auto start = std::chrono::steady_clock::now();
  cudaError_t error = cudaSuccess;
  for (std::size_t i = 0; i < copies.repeats && error == cudaSuccess; ++i) {
    if (copies.to_device != nullptr) {
      error = cudaMemcpyAsync(copies.to_device, copies.from_host, copies.bytes, cudaMemcpyDefault, streams.all[0]);
    }
    if (copies.to_host != nullptr && error == cudaSuccess) {
      error = cudaMemcpyAsync(copies.to_host, copies.from_device, copies.bytes, cudaMemcpyDefault, streams.all[1]);
    }
  }
  for (const cudaStream_t stream : streams.all) {  // also after an error: the caller may free its memory then
    const cudaError_t ended = cudaStreamSynchronize(stream);
    if (error == cudaSuccess) error = ended;
  }
  seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return error;
}

}  // namespace
}  // namespace strata::cuda

extern "C" __attribute__((visibility("default"))) double strata_cuda_bare_copies(const strata::cuda::BareCopies* copies,
                                                                                 char* why, std::size_t why_bytes) {
  double seconds = 0;
  const cudaError_t error = strata::cuda::run(*copies, seconds);
  if (error == cudaSuccess) return seconds;
  std::snprintf(why, why_bytes, "bare copies: %s", cudaGetErrorString(error));
  return -1;
}
