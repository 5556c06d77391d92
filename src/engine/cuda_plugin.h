// Finding and opening the CUDA plug-in: a process without a GPU loads none of CUDA's libraries.
#pragma once

#include <memory>
#include <string>

#include "cuda/backend.h"

namespace strata::engine {

// The plug-in is the file that the environment variable STRATA_CUDA_PLUGIN names, else libstrata_cuda.so in the folder
// lib beside the program's own, else what the loader finds under that name. It is loaded once and never unloaded:
// CUDA's libraries do not survive that. Thread-safe.

std::string cuda_plugin_file();

struct CudaDevices {
  int count = 0;
  bool has_driver = false;       // where there is one, somebody expects a GPU
  std::string why_no_more = "";  // why count is 0, or a GPU was left out
  cuda::TorchPlace torch = cuda::TorchPlace::Nowhere;
};

// Never throws for what a machine lacks. Opens no device, and so makes no context on one.
CudaDevices cuda_devices();
// For a run on a GPU. Throws: DeviceError that says why none can be used.
CudaDevices require_cuda_devices();

// Throws: DeviceError that says why the plug-in or the device cannot be used.
std::unique_ptr<cuda::Backend> open_cuda(const cuda::BackendOptions& options);

// Another C function of the plug-in, or of the CUDA libraries that it brings along; null where there is none. Loads the
// plug-in also where there is no driver, so that it can be asked what it is built with.
void* cuda_plugin_symbol(const char* name);

}  // namespace strata::engine
