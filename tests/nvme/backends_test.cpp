// The I/O backends against their contract.
#include "contract/io_backend_contract.h"
#include "nvme/thread_backend.h"
#include "nvme/uring_backend.h"

namespace strata::test {
namespace {

// With one entry the submission ring is full, and the completion ring overflows, most of the time.
template <nvme::RingMode mode, unsigned entries>
struct Uring {
  static std::unique_ptr<nvme::IoBackend> make(std::vector<int> files, Regions regions) {
    return std::make_unique<nvme::UringBackend>(
        nvme::UringOptions{.mode = mode, .entries = entries, .files = std::move(files), .regions = std::move(regions)});
  }
};
using UringPlain = Uring<nvme::RingMode::Plain, 64>;
using UringDeferred = Uring<nvme::RingMode::Deferred, 64>;
using UringPolled = Uring<nvme::RingMode::Polled, 64>;
using TinyUringPlain = Uring<nvme::RingMode::Plain, 1>;
using TinyUringDeferred = Uring<nvme::RingMode::Deferred, 1>;
using TinyUringPolled = Uring<nvme::RingMode::Polled, 1>;

struct Threads {
  static std::unique_ptr<nvme::IoBackend> make(std::vector<int>, Regions) {
    return std::make_unique<nvme::ThreadBackend>(3);
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(UringPlain, IoBackendContract, UringPlain);
INSTANTIATE_TYPED_TEST_SUITE_P(UringDeferred, IoBackendContract, UringDeferred);
INSTANTIATE_TYPED_TEST_SUITE_P(UringPolled, IoBackendContract, UringPolled);
INSTANTIATE_TYPED_TEST_SUITE_P(TinyUringPlain, IoBackendContract, TinyUringPlain);
INSTANTIATE_TYPED_TEST_SUITE_P(TinyUringDeferred, IoBackendContract, TinyUringDeferred);
INSTANTIATE_TYPED_TEST_SUITE_P(TinyUringPolled, IoBackendContract, TinyUringPolled);
INSTANTIATE_TYPED_TEST_SUITE_P(Threads, IoBackendContract, Threads);

}  // namespace
}  // namespace strata::test
