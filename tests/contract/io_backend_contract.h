// What every IoBackend promises. To try another one: a struct like
//   struct Mine { static std::unique_ptr<nvme::IoBackend> make(std::vector<int> files, Regions regions); };
// and INSTANTIATE_TYPED_TEST_SUITE_P(Mine, IoBackendContract, Mine);
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "nvme/file_descriptor.h"
#include "nvme/io_backend.h"
#include "support/patterned_bytes.h"
#include "support/temp_dir.h"

namespace strata::test {

using Regions = std::vector<std::span<std::byte>>;

template <typename Backend>
class IoBackendContract : public testing::Test {
 protected:
  IoBackendContract()
      : file_(::open((directory_.path() / "file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)),
        registered_(std::size_t{1} << 20, 0),
        backend_(Backend::make({file_.get()}, {registered_.span()})) {}

  int fd() const { return file_.get(); }
  nvme::IoBackend& backend() { return *backend_; }
  std::span<std::byte> registered() { return registered_.span(); }

  // Results by token once `count` requests have completed. Fails when a token comes twice.
  std::map<std::uint64_t, std::int64_t> collect(std::size_t count, std::size_t at_a_time = 16) {
    std::map<std::uint64_t, std::int64_t> results;
    std::vector<nvme::IoCompletion> out(at_a_time);
    while (results.size() < count) {
      const std::size_t fresh = backend_->complete(out);
      EXPECT_LE(fresh, at_a_time);
      for (std::size_t i = 0; i < fresh; ++i) {
        EXPECT_TRUE(results.emplace(out[i].token, out[i].result).second) << "token " << out[i].token << " came twice";
      }
    }
    return results;
  }
  std::int64_t perform(nvme::IoOp op, std::uint64_t offset, std::span<std::byte> memory) {
    backend_->submit({op, fd(), offset, memory.data(), memory.size(), 7});
    return collect(1).at(7);
  }

  TempDir directory_;
  nvme::FileDescriptor file_;
  GuardedBytes registered_;
  std::unique_ptr<nvme::IoBackend> backend_;
};
TYPED_TEST_SUITE_P(IoBackendContract);

TYPED_TEST_P(IoBackendContract, RoundTripsAnyLengthThroughRegisteredMemory) {
  for (const std::size_t bytes : {1u, 511u, 512u, 4095u, 4097u, 65537u}) {
    SCOPED_TRACE(bytes);
    const std::vector<std::byte> sent = random_bytes(bytes, bytes);
    const std::span<std::byte> memory = this->registered().first(bytes);
    std::copy(sent.begin(), sent.end(), memory.begin());
    ASSERT_EQ(this->perform(nvme::IoOp::Write, 12345, memory), static_cast<std::int64_t>(bytes));
    std::fill(memory.begin(), memory.end(), std::byte{0});
    ASSERT_EQ(this->perform(nvme::IoOp::Read, 12345, memory), static_cast<std::int64_t>(bytes));
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), memory.begin()));
  }
}

TYPED_TEST_P(IoBackendContract, RoundTripsMemoryThatIsNotRegistered) {
  std::vector<std::byte> sent = random_bytes(10'001, 3);
  ASSERT_EQ(this->perform(nvme::IoOp::Write, 0, sent), 10'001);
  std::vector<std::byte> received(10'001);
  ASSERT_EQ(this->perform(nvme::IoOp::Read, 0, received), 10'001);
  EXPECT_EQ(sent, received);
}

TYPED_TEST_P(IoBackendContract, ServesAFileThatIsNotRegistered) {
  const nvme::FileDescriptor other(
      ::open((this->directory_.path() / "other").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  std::vector<std::byte> sent = random_bytes(100, 4);
  this->backend().submit({nvme::IoOp::Write, other.get(), 0, sent.data(), sent.size(), 1});
  ASSERT_EQ(this->collect(1).at(1), 100);
  std::vector<std::byte> received(100);
  ASSERT_EQ(::pread(other.get(), received.data(), 100, 0), 100);
  EXPECT_EQ(sent, received);
}

TYPED_TEST_P(IoBackendContract, CompletesEachOfManyRequestsOnce) {
  constexpr std::size_t kRequests = 500;  // far more than any ring of the instances holds
  constexpr std::size_t kBytes = 97;
  std::vector<std::byte> sent = random_bytes(kRequests * kBytes, 5);
  for (std::size_t i = 0; i < kRequests; ++i) {
    this->backend().submit({nvme::IoOp::Write, this->fd(), i * kBytes, sent.data() + i * kBytes, kBytes, i});
  }
  for (const auto& [token, result] : this->collect(kRequests)) EXPECT_EQ(result, kBytes) << token;
  std::vector<std::byte> received(sent.size());
  ASSERT_EQ(::pread(this->fd(), received.data(), received.size(), 0), static_cast<ssize_t>(received.size()));
  EXPECT_EQ(sent, received);
}

TYPED_TEST_P(IoBackendContract, GivesNoMoreCompletionsThanAskedForAndTheRestLater) {
  std::vector<std::byte> sent = random_bytes(64, 6);
  for (std::uint64_t i = 0; i < 10; ++i) {
    this->backend().submit({nvme::IoOp::Write, this->fd(), i * 64, sent.data(), 64, i});
  }
  EXPECT_EQ(this->collect(10, 1).size(), 10u);
}

TYPED_TEST_P(IoBackendContract, ReportsTheBytesBeforeTheEndOfTheFileAndThenZero) {
  std::vector<std::byte> memory = random_bytes(1000, 7);
  ASSERT_EQ(this->perform(nvme::IoOp::Write, 0, memory), 1000);
  EXPECT_EQ(this->perform(nvme::IoOp::Read, 400, memory), 600);
  EXPECT_EQ(this->perform(nvme::IoOp::Read, 1000, memory), 0);
}

TYPED_TEST_P(IoBackendContract, ReportsErrorsAsNegativeErrno) {
  const nvme::FileDescriptor write_only(
      ::open((this->directory_.path() / "other").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  std::array<std::byte, 16> memory{};
  this->backend().submit({nvme::IoOp::Read, write_only.get(), 0, memory.data(), memory.size(), 1});
  EXPECT_EQ(this->collect(1).at(1), -EBADF);
}

TYPED_TEST_P(IoBackendContract, KeepsOffsetsBeyondFourGigabytes) {
  const std::uint64_t offset = (std::uint64_t{5} << 30) + 3;  // sparse: takes one block of the disk
  std::vector<std::byte> sent = random_bytes(100, 8);
  ASSERT_EQ(this->perform(nvme::IoOp::Write, offset, sent), 100);
  std::vector<std::byte> received(100);
  ASSERT_EQ(::pread(this->fd(), received.data(), 100, static_cast<off_t>(offset)), 100);
  EXPECT_EQ(sent, received);
}

TYPED_TEST_P(IoBackendContract, ReturnsAtOnceWhenWokenBefore) {
  this->backend().wake();
  this->backend().wake();
  std::array<nvme::IoCompletion, 4> out;
  EXPECT_EQ(this->backend().complete(out), 0u);
}

TYPED_TEST_P(IoBackendContract, CanBeWokenAgainAndAgainFromAnotherThread) {
  std::array<nvme::IoCompletion, 4> out;
  for (int i = 0; i < 100; ++i) {
    std::thread other([this] { this->backend().wake(); });
    EXPECT_EQ(this->backend().complete(out), 0u);
    other.join();
  }
}

REGISTER_TYPED_TEST_SUITE_P(IoBackendContract, RoundTripsAnyLengthThroughRegisteredMemory,
                            RoundTripsMemoryThatIsNotRegistered, ServesAFileThatIsNotRegistered,
                            CompletesEachOfManyRequestsOnce, GivesNoMoreCompletionsThanAskedForAndTheRestLater,
                            ReportsTheBytesBeforeTheEndOfTheFileAndThenZero, ReportsErrorsAsNegativeErrno,
                            KeepsOffsetsBeyondFourGigabytes, ReturnsAtOnceWhenWokenBefore,
                            CanBeWokenAgainAndAgainFromAnotherThread);

}  // namespace strata::test
