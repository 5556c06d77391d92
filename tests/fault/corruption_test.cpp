// The NVMe store with checksums on drives that return other bytes than were written.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>

#include "core/bytes.h"
#include "core/error.h"
#include "nvme/file_descriptor.h"
#include "nvme/nvme_store.h"
#include "support/patterned_bytes.h"
#include "support/tampering_io_backend.h"
#include "support/temp_dir.h"

namespace strata::test {
namespace {

using namespace literals;
constexpr std::uint64_t kChunk = 64_KiB;
constexpr std::uint64_t kChunks = 4;
using Verdict = TamperingIoBackend::Verdict;

// One blob of four and a half chunks; the test may tamper with every request.
class CorruptionTest : public testing::Test {
 protected:
  CorruptionTest() {
    nvme::NvmeOptions options;
    options.paths = {directory_.path()};
    options.chunk_bytes = kChunk;
    options.checksums = true;
    store_.emplace(options, budget_, [this](const nvme::BackendOptions& backend) {
      return std::make_unique<TamperingIoBackend>(nvme::make_io_backend(backend), [this](nvme::IoRequest& request) {
        fd_ = request.fd;
        return tamper_ ? tamper_(request) : Verdict::Perform;
      });
    });
    blob_ = store_->create("exp_avg", sent_.size());
  }

  void write(std::uint64_t offset, std::uint64_t bytes) {
    store_->write(blob_, offset, std::span(sent_).subspan(offset, bytes)).wait();
  }
  void write_all() { write(0, sent_.size()); }
  std::exception_ptr read(std::uint64_t offset, std::uint64_t bytes) {
    received_.assign(bytes, std::byte{0});
    return store_->read(blob_, offset, received_, IoUrgency::Demand).wait_noexcept();
  }
  static std::string message_of(const std::exception_ptr& error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const CorruptionError& corruption) {
      return corruption.what();
    }
    ADD_FAILURE() << "the read succeeded";
    return "";
  }
  // The drive loses one bit at `offset` of the swap file.
  void flip_bit(std::uint64_t offset) {
    const std::string path = "/proc/self/fd/" + std::to_string(fd_.load());
    const nvme::FileDescriptor file(::open(path.c_str(), O_RDWR));
    std::byte byte{};
    ASSERT_EQ(::pread(file.get(), &byte, 1, static_cast<off_t>(offset)), 1);
    byte ^= std::byte{0x10};
    ASSERT_EQ(::pwrite(file.get(), &byte, 1, static_cast<off_t>(offset)), 1);
    ASSERT_EQ(::fsync(file.get()), 0);
  }

  TempDir directory_;
  Budget budget_{"nvme", 1_GiB};
  std::atomic<int> fd_{-1};
  TamperingIoBackend::Tamper tamper_;  // set only while nothing is in flight
  std::optional<nvme::NvmeStore> store_;
  std::vector<std::byte> sent_ = random_bytes(kChunks * kChunk + kChunk / 2 + 17, 1);
  std::vector<std::byte> received_;
  BlobId blob_;
};

TEST_F(CorruptionTest, ReadsBackWhatIsSound) {
  write_all();
  EXPECT_EQ(read(0, sent_.size()), nullptr);
  EXPECT_EQ(received_, sent_);
}

TEST_F(CorruptionTest, NamesPlaceBlobChunkAndBothChecksumsWhenOneBitIsFlipped) {
  write_all();
  flip_bit(2 * kChunk + 777);
  const std::string message = message_of(read(0, sent_.size()));
  for (const std::string& part :
       {directory_.path().string(), "offset " + std::to_string(2 * kChunk), std::string("exp_avg"),
        "chunk at " + std::to_string(2 * kChunk), std::string("expected 0x"), std::string("found 0x")}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is missing in: " << message;
  }
}

TEST_F(CorruptionTest, LeavesOtherChunksReadable) {
  write_all();
  flip_bit(2 * kChunk);
  EXPECT_EQ(read(0, 2 * kChunk), nullptr);
  EXPECT_EQ(read(3 * kChunk, kChunk), nullptr);
  message_of(read(2 * kChunk, kChunk));
}

TEST_F(CorruptionTest, VerifiesAShortLastChunk) {
  write_all();
  flip_bit(sent_.size() - 1);
  const std::uint64_t last = kChunks * kChunk;
  message_of(read(last, sent_.size() - last));
}

TEST_F(CorruptionTest, IsSatisfiedOnceTheChunkIsWrittenAgain) {
  write_all();
  flip_bit(5);
  message_of(read(0, kChunk));
  write(0, kChunk);
  EXPECT_EQ(read(0, kChunk), nullptr);
}

// As documented: these reads are not verified.
TEST_F(CorruptionTest, DoesNotVerifyWhatWasNotWrittenOrReadWhole) {
  EXPECT_EQ(read(0, kChunk), nullptr) << "never written";
  write_all();
  flip_bit(5);
  EXPECT_EQ(read(0, kChunk - 1), nullptr) << "read in part";
  write(100, 50);
  EXPECT_EQ(read(0, kChunk), nullptr) << "written in part since";
}

TEST_F(CorruptionTest, CatchesAWriteThatTheDriveLost) {
  write_all();
  sent_ = random_bytes(sent_.size(), 2);
  tamper_ = [](nvme::IoRequest& request) {
    return request.op == nvme::IoOp::Write && request.offset == kChunk ? Verdict::Lose : Verdict::Perform;
  };
  write_all();
  EXPECT_EQ(read(0, kChunk), nullptr);
  message_of(read(kChunk, kChunk));
}

TEST_F(CorruptionTest, CatchesAWriteThatWentElsewhereAtBothPlaces) {
  write_all();
  sent_ = random_bytes(sent_.size(), 3);
  tamper_ = [](nvme::IoRequest& request) {
    if (request.op == nvme::IoOp::Write) request.offset = 3 * kChunk;
    return Verdict::Perform;
  };
  write(kChunk, kChunk);
  message_of(read(kChunk, kChunk));      // still what it was before
  message_of(read(3 * kChunk, kChunk));  // overwritten by a stranger
}

TEST_F(CorruptionTest, CatchesAReadFromElsewhere) {
  write_all();
  tamper_ = [](nvme::IoRequest& request) {
    if (request.op == nvme::IoOp::Read) request.offset = 0;
    return Verdict::Perform;
  };
  message_of(read(kChunk, kChunk));
}

}  // namespace
}  // namespace strata::test
