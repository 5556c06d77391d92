#include "comm/nccl_plugin.h"

#include <dlfcn.h>

#include <torch/csrc/cuda/nccl.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "comm/nccl_environment.h"
#include "comm/nccl_version.h"

namespace {

using namespace strata::comm;

// A time-out must become an error of this program (exit code 6): by default c10d's watchdog ends the process by itself.
// What the user has set stays, or is refused.
void set_watchdog_environment() {
  const std::string why = refused_nccl_environment([](const char* name) -> const char* { return std::getenv(name); });
  if (!why.empty()) throw std::runtime_error(why);
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", 0);  // abort NCCL's communicators, leave the process alone
  setenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", 0);   // in the watchdog's thread nobody could catch them
  setenv("TORCH_NCCL_ENABLE_MONITORING", "0", 0);     // else a second watchdog ends the process
  setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", 0);
  setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0", 0);  // else a minute passes between the error and the abort
}

// Of the library that torch has loaded; 0 where it does not say.
int running_version() {
  void* const library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return 0;  // torch has NCCL in itself
  const auto ask = reinterpret_cast<decltype(&ncclGetVersion)>(dlsym(library, "ncclGetVersion"));
  int version = 0;
  return ask != nullptr && ask(&version) == ncclSuccess ? version : 0;
}

void require_matching_nccl() {
  constexpr NcclVersion compiled{NCCL_MAJOR, NCCL_MINOR};
  std::string why =
      refusal(compiled, version_from_torch(torch::cuda::nccl::version()), "the one that torch was built with");
  const int running = running_version();
  if (why.empty() && running > 0)
    why = refusal(compiled, version_from_nccl(running), "the libnccl.so.2 that is loaded");
  if (!why.empty()) throw std::runtime_error(why);
}

c10::intrusive_ptr<c10d::ProcessGroupNCCL::Options> options_with(std::int64_t timeout_ms) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::milliseconds(timeout_ms);
  // A group that is bound to a device may else return from connecting before it has.
  if (std::getenv("TORCH_NCCL_USE_COMM_NONBLOCKING") == nullptr) options->config.blocking = 1;
  return options;
}

}  // namespace

c10d::Backend* strata_make_nccl_backend(c10d::Store* store, int rank, int world, int device, std::int64_t timeout_ms,
                                        char* error, std::size_t error_bytes) {
  try {
    require_matching_nccl();
    set_watchdog_environment();
    auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::intrusive_ptr<c10d::Store>::reclaim_copy(store),
                                                               rank, world, options_with(timeout_ms));
    backend->setBoundDeviceId(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device)));
    return backend.release();
  } catch (const std::exception& e) {
    std::snprintf(error, error_bytes, "%s", e.what());
    return nullptr;
  }
}
