// Return values of CUDA as exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "core/error.h"

namespace strata::cuda {

// Throws DeviceError with the call's name and CUDA's text unless `error`, a cudaError_t, says success.
inline void check_call(int error, const char* call) {
  if (error == cudaSuccess) return;
  throw DeviceError(std::string(call) + ": " + cudaGetErrorString(static_cast<cudaError_t>(error)) + " (error " +
                    std::to_string(error) + ")");
}

}  // namespace strata::cuda
