// Chooses the I/O backend.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "nvme/io_backend.h"
#include "nvme/uring_backend.h"

namespace strata::nvme {

enum class BackendKind : std::uint8_t { Auto, Uring, Threads };

struct BackendOptions {
  BackendKind kind = BackendKind::Auto;
  unsigned threads = 4;  // of the thread backend
  UringOptions uring{};
};

// Called on the thread that will own the backend.
using BackendFactory = std::function<std::unique_ptr<IoBackend>(const BackendOptions&)>;

// Auto is io_uring, or threads with one warning when the kernel refuses a ring (EPERM, EACCES, ENOSYS, ENOMEM).
// Throws: IoError when io_uring was asked for by name and is refused.
std::unique_ptr<IoBackend> make_io_backend(const BackendOptions& options);

}  // namespace strata::nvme
