// As much of the CUDA runtime as the optimizer and the shard arithmetic call. Memory is the host's, and a stream's work
// is done when it is queued.
#include "kernels/fake_runtime.h"

#include <cuda_runtime_api.h>

#include <cstdlib>

namespace strata::test {

FakeRuntime& fake_runtime() {
  static FakeRuntime runtime;
  return runtime;
}

}  // namespace strata::test

using strata::test::fake_runtime;

extern "C" {

int strata_fake_launch(void* stream, void (*run)(void*), void* argument) {
  fake_runtime().last_stream = stream;
  if (fake_runtime().launch_error != cudaSuccess) return fake_runtime().launch_error;
  ++fake_runtime().launches;
  run(argument);
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? "unspecified launch failure" : "another error";
}

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? "cudaErrorLaunchFailure" : "another";
}

cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  fake_runtime().last_stream = stream;
  ++fake_runtime().synchronizations;
  return static_cast<cudaError_t>(fake_runtime().synchronize_error);
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  *pointer = std::malloc(bytes);
  ++fake_runtime().pinned_allocations;
  return *pointer != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void* pointer) {
  std::free(pointer);
  --fake_runtime().pinned_allocations;
  return cudaSuccess;
}
}
