// The I/O backends against their contract.
#include "contract/io_backend_contract.h"
#include "nvme/thread_backend.h"
#include "nvme/uring_backend.h"

namespace strata::test {
namespace {

struct Uring {
  static std::unique_ptr<nvme::IoBackend> make(std::vector<int> files, Regions regions) {
    return std::make_unique<nvme::UringBackend>(
        nvme::UringOptions{.entries = 64, .files = std::move(files), .regions = std::move(regions)});
  }
};

// Two entries: the submission ring is full most of the time.
struct TinyUring {
  static std::unique_ptr<nvme::IoBackend> make(std::vector<int> files, Regions regions) {
    return std::make_unique<nvme::UringBackend>(
        nvme::UringOptions{.entries = 1, .files = std::move(files), .regions = std::move(regions)});
  }
};

struct Threads {
  static std::unique_ptr<nvme::IoBackend> make(std::vector<int>, Regions) {
    return std::make_unique<nvme::ThreadBackend>(3);
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Uring, IoBackendContract, Uring);
INSTANTIATE_TYPED_TEST_SUITE_P(TinyUring, IoBackendContract, TinyUring);
INSTANTIATE_TYPED_TEST_SUITE_P(Threads, IoBackendContract, Threads);

}  // namespace
}  // namespace strata::test
