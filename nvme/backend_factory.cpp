#include "nvme/backend_factory.h"

#include <cerrno>
#include <cstring>
#include <string>

#include "core/error.h"
#include "core/log.h"
#include "nvme/thread_backend.h"

namespace strata::nvme {

std::unique_ptr<IoBackend> make_io_backend(const BackendOptions& options) {
  if (options.kind == BackendKind::Threads) return std::make_unique<ThreadBackend>(options.threads);
  try {
    return std::make_unique<UringBackend>(options.uring);
  } catch (const IoError& refused) {
    const int error = refused.failure().errno_value;
    const bool expected = error == EPERM || error == EACCES || error == ENOSYS || error == ENOMEM;
    if (options.kind == BackendKind::Uring || !expected) throw;
    // Once per process: every path of a store meets the same refusal.
    log::warning_once("nvme.uring", std::string("io_uring is not available (") + std::strerror(error) + "): using " +
                                        std::to_string(options.threads) +
                                        " threads per path for NVMe I/O instead, at the same results and a higher "
                                        "CPU cost. " +
                                        refused.failure().hint);
    return std::make_unique<ThreadBackend>(options.threads);
  }
}

}  // namespace strata::nvme
