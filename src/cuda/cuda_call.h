// Return codes of the CUDA runtime as exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace strata::cuda {

// Throws: DeviceError with the call, the error's name and its text. Takes the error back from cudaGetLastError(), so
// that whoever looks there next (torch does, after each of its launches) is not blamed for it.
void check(cudaError_t error, const char* call);
// Of kernels' entry points, which have no header of CUDA.
inline void check(int error, const char* call) {
  check(static_cast<cudaError_t>(error), call);
}

// "cudaMemcpyAsync failed: cudaErrorInvalidValue, invalid argument".
std::string failure_text(cudaError_t error, const char* call);

// After these the context of the process is gone: every later call returns the same error.
bool is_sticky(cudaError_t error);

}  // namespace strata::cuda
