#include "nvme/uring_backend.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <liburing.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "core/buffer.h"
#include "core/error.h"
#include "nvme/backend_factory.h"
#include "nvme/file_descriptor.h"
#include "support/proc.h"
#include "support/temp_dir.h"

namespace strata::nvme {
namespace {

template <int error>
int refuse_ring(unsigned, io_uring*, io_uring_params*) {
  return -error;
}

// As a kernel before 6.1: knows neither flag.
int old_kernel(unsigned entries, io_uring* ring, io_uring_params* params) {
  if ((params->flags & (IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN)) != 0) return -EINVAL;
  return io_uring_queue_init_params(entries, ring, params);
}

std::size_t woken(IoBackend& backend) {
  backend.wake();
  std::array<IoCompletion, 1> out;
  return backend.complete(out);
}

// Allows only rings that nobody else drives, with the error of kernels and sandboxes that forbid SQPOLL.
template <int error>
int no_polling(unsigned entries, io_uring* ring, io_uring_params* params) {
  if ((params->flags & IORING_SETUP_SQPOLL) != 0) return -error;
  return io_uring_queue_init_params(entries, ring, params);
}

// As Linux 5.10: polls, but only for registered files.
int polls_registered_files_only(unsigned entries, io_uring* ring, io_uring_params* params) {
  const int result = io_uring_queue_init_params(entries, ring, params);
  params->features &= ~IORING_FEAT_SQPOLL_NONFIXED;
  return result;
}

TEST(UringBackend, FallsBackToPlainOnKernelsWithoutDeferredCompletions) {
  UringBackend backend({.mode = RingMode::Deferred, .setup = &old_kernel});
  EXPECT_EQ(backend.mode(), RingMode::Plain);
  EXPECT_EQ(woken(backend), 0u);
}

TEST(UringBackend, FallsBackToPlainWherePollingIsRefused) {
  for (const auto setup : {&no_polling<EINVAL>, &no_polling<EPERM>, &polls_registered_files_only}) {
    UringBackend backend({.mode = RingMode::Polled, .setup = setup});
    EXPECT_EQ(backend.mode(), RingMode::Plain);
    EXPECT_EQ(woken(backend), 0u);
  }
}

TEST(UringBackend, UsesEachModeThatThisKernelKnows) {
  EXPECT_EQ(UringBackend({.mode = RingMode::Plain}).mode(), RingMode::Plain);
  for (const RingMode mode : {RingMode::Deferred, RingMode::Polled}) {
    UringBackend backend({.mode = mode});
    if (backend.mode() != mode) GTEST_SKIP() << "this kernel refuses ring mode " << static_cast<int>(mode);
    EXPECT_EQ(woken(backend), 0u);
  }
}

TEST(UringBackend, RegistersRegionsLargerThanOneGibibyteInPieces) {
  Budget budget("host", std::uint64_t{3} << 30);
  const Buffer memory = allocate_host(budget, (std::size_t{1} << 30) + 2 * kPageBytes, MemoryTag::Staging);
  UringBackend backend({.regions = {memory.span()}});
  if (!backend.buffers_registered()) GTEST_SKIP() << "this user may not lock 1 GiB of memory";
  test::TempDir directory;
  const FileDescriptor file(::open((directory.path() / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  // One page on either side of the seam: crosses two registered buffers.
  const std::span<std::byte> seam = memory.span().subspan((std::size_t{1} << 30) - kPageBytes, 2 * kPageBytes);
  std::fill(seam.begin(), seam.end(), std::byte{0x5A});
  backend.submit({IoOp::Write, file.get(), 0, seam.data(), seam.size(), 1});
  std::array<IoCompletion, 1> out;
  ASSERT_EQ(backend.complete(out), 1u);
  EXPECT_EQ(out[0].result, static_cast<std::int64_t>(seam.size()));
}

TEST(UringBackend, LocksTheMemoryItRegistersAndNothingMore) {
  Budget budget("host", std::uint64_t{1} << 30);
  const Buffer memory = allocate_host(budget, (std::size_t{64} << 20) + 3 * kPageBytes, MemoryTag::Staging);
  // The kernel lets go of a closed ring's memory some time later.
  for (int i = 0; test::status_bytes("VmPin") > 0 && i < 1000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_EQ(test::status_bytes("VmPin"), 0U) << "rings of earlier tests";
  UringBackend backend({.regions = {memory.span()}});
  if (!backend.buffers_registered()) GTEST_SKIP() << "this user may not lock 64 MiB of memory";

  EXPECT_EQ(test::status_bytes("VmPin"), memory.bytes());
}

TEST(UringBackend, ExplainsWhyTheKernelGivesNoRing) {
  try {
    UringBackend backend({.setup = &refuse_ring<EPERM>});
    FAIL() << "a refused ring was taken";
  } catch (const IoError& error) {
    EXPECT_EQ(error.failure().errno_value, EPERM);
    EXPECT_NE(std::string(error.what()).find("seccomp"), std::string::npos) << error.what();
  }
}

// Runs in a child process, because a warning is given once per process. Exits with 0 when threads took over each time.
[[noreturn]] void make_backends_without_rings() {
  for (const auto setup : {&refuse_ring<EPERM>, &refuse_ring<ENOSYS>, &refuse_ring<ENOMEM>}) {
    BackendOptions options;
    options.uring.setup = setup;
    const std::unique_ptr<IoBackend> backend = make_io_backend(options);
    if (backend->name() != "threads" || woken(*backend) != 0) std::_Exit(1);
  }
  std::_Exit(0);
}

TEST(MakeIoBackendDeathTest, UsesThreadsWithOneWarningWhenTheRingIsRefused) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(make_backends_without_rings(), testing::ExitedWithCode(0), "^[^\n]*io_uring is not available[^\n]*\n?$");
}

TEST(MakeIoBackend, DoesNotHideAFailureThatIsNoRefusal) {
  BackendOptions options;
  options.uring.setup = &refuse_ring<EMFILE>;
  EXPECT_THROW(make_io_backend(options), IoError);
}

TEST(MakeIoBackend, DoesNotReplaceARingThatWasAskedForByName) {
  BackendOptions options{.kind = BackendKind::Uring, .uring = {.setup = &refuse_ring<EPERM>}};
  EXPECT_THROW(make_io_backend(options), IoError);
}

// Becomes an ordinary user's process as far as locked memory goes.
void limit_locked_memory(rlim_t bytes) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  const rlimit limit{bytes, bytes};
  if (::syscall(SYS_capset, &header, data) != 0 || ::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) std::_Exit(77);
}

// Runs in a child process. Exits with 0 when requests work although nothing could be registered.
[[noreturn]] void use_ring_with_little_locked_memory() {
  limit_locked_memory(64 << 10);
  Budget budget("host", std::uint64_t{1} << 30);
  const Buffer memory = allocate_host(budget, std::size_t{8} << 20, MemoryTag::Staging);
  UringBackend first({.regions = {memory.span()}});
  UringBackend second({.regions = {memory.span()}});
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0 || ::write(pipe_ends[1], "x", 1) != 1) std::_Exit(78);
  std::array<IoCompletion, 1> out;
  for (UringBackend* backend : {&first, &second}) {
    if (backend->buffers_registered()) std::_Exit(79);
  }
  first.submit({IoOp::Read, pipe_ends[0], 0, memory.data(), 1, 1});
  if (first.complete(out) != 1 || out[0].result != 1) std::_Exit(80);
  std::_Exit(0);
}

TEST(UringBackendDeathTest, CarriesOnUnregisteredWithOneWarningWhenLockedMemoryIsLimited) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  // The whole output is one line with the limit and the cure.
  EXPECT_EXIT(use_ring_with_little_locked_memory(), testing::ExitedWithCode(0),
              "^[^\n]*cannot register 8.00 MiB[^\n]*RLIMIT_MEMLOCK is 64.00 KiB[^\n]*ulimit -l unlimited[^\n]*\n?$");
}

}  // namespace
}  // namespace strata::nvme
