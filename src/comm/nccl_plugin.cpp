#include "comm/nccl_plugin.h"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdio>
#include <cstdlib>

namespace {

// A time-out must become an error of this program (exit code 6): by default c10d's watchdog ends the process by itself.
// What the user has set stays.
void set_watchdog_environment() {
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", 0);  // abort NCCL's communicators, leave the process alone
  setenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", 0);   // in the watchdog's thread nobody could catch them
  setenv("TORCH_NCCL_ENABLE_MONITORING", "0", 0);     // else a second watchdog ends the process
  setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", 0);
}

}  // namespace

c10d::Backend* strata_make_nccl_backend(c10d::Store* store, int rank, int world, int device, std::int64_t timeout_ms,
                                        char* error, std::size_t error_bytes) {
  try {
    set_watchdog_environment();
    const auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = std::chrono::milliseconds(timeout_ms);
    auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::intrusive_ptr<c10d::Store>::reclaim_copy(store),
                                                               rank, world, options);
    backend->setBoundDeviceId(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device)));
    return backend.release();
  } catch (const std::exception& e) {
    std::snprintf(error, error_bytes, "%s", e.what());
    return nullptr;
  }
}
