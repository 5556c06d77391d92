// Stores of several ranks in one directory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>

#include "core/error.h"
#include "nvme/drive_tokens.h"
#include "nvme/nvme_store.h"
#include "support/child_process.h"
#include "support/patterned_bytes.h"
#include "support/small_mount.h"
#include "support/temp_dir.h"

namespace strata::nvme {
namespace {

namespace fs = std::filesystem;

class NvmeStoreRanks : public testing::Test {
 protected:
  NvmeOptions options_of(std::size_t rank, std::size_t ranks = 2) const {
    NvmeOptions options;
    options.paths = {directory_.path()};
    options.block_bytes = 64 << 10;
    options.queue_depth = 4;
    options.job = job_;
    options.local_ranks = ranks;
    options.rank = rank;
    return options;
  }
  // Writes and reads back, and throws when other bytes come.
  static void use(NvmeStore& store, std::uint64_t seed) {
    const std::vector<std::byte> sent = test::random_bytes(3'000'003, seed);
    const BlobId blob = store.create("weights", sent.size());
    std::vector<std::byte> received(sent.size());
    for (int i = 0; i < 5; ++i) {
      store.write(blob, 0, sent).wait();
      store.read(blob, 0, received, IoUrgency::Demand).wait();
      if (received != sent) throw std::runtime_error("other bytes came back");
    }
  }
  // How many pieces of shared memory this process has.
  static std::ptrdiff_t shared_memories() {
    const fs::directory_iterator files("/proc/self/fd");
    return std::count_if(begin(files), end(files), [](const fs::directory_entry& file) {
      std::error_code closed;  // the directory itself, by now
      return fs::read_symlink(file.path(), closed).string().starts_with("/memfd:strata-drive-");
    });
  }

  const test::TempDir directory_;
  const std::string job_ = "127.0.0.1:29500 " + std::to_string(::getpid());
  Budget budget_{"nvme", std::uint64_t{1} << 30};
};

TEST_F(NvmeStoreRanks, UseOneDirectoryFromSeveralProcesses) {
  std::vector<test::ChildProcess> ranks;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      NvmeStore store(options_of(rank, 3), budget_);
      use(store, rank);
    });
  }

  for (test::ChildProcess& rank : ranks) EXPECT_EQ(rank.wait(), 0);
  EXPECT_TRUE(fs::is_empty(directory_.path()));
}

TEST_F(NvmeStoreRanks, UseOneDirectoryFromThreadsOfOneProcess) {
  {
    std::vector<std::jthread> ranks;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] {
        NvmeStore store(options_of(rank, 3), budget_);
        EXPECT_NO_THROW(use(store, rank));
      });
    }
  }
  EXPECT_TRUE(fs::is_empty(directory_.path()));
}

TEST_F(NvmeStoreRanks, ShareTokensOnlyWhenThereAreSeveral) {
  {
    const NvmeStore store(options_of(0, 1), budget_);
    EXPECT_EQ(shared_memories(), 0);
  }
  NvmeOptions nameless = options_of(0);
  nameless.job.clear();
  {
    const NvmeStore store(nameless, budget_);
    EXPECT_EQ(shared_memories(), 0);
  }
  const NvmeStore store(options_of(0), budget_);
  EXPECT_EQ(shared_memories(), 1);
}

TEST_F(NvmeStoreRanks, WorkWithoutTokensWhenTheyCannotBeHad) {
  std::deque<DriveTokens> members;
  for (std::size_t i = 0; i < DriveTokens::kMaxMembers; ++i) {
    members.emplace_back(job_, drive_of(directory_.path()), 4);
  }

  test::ChildProcess rank([&] {  // a process warns once
    testing::internal::CaptureStderr();
    NvmeStore store(options_of(0), budget_);
    const std::string log = testing::internal::GetCapturedStderr();
    if (log.find("do not share the queue of drive") == std::string::npos) throw std::runtime_error("no word: " + log);
    use(store, 1);
  });

  EXPECT_EQ(rank.wait(), 0);
}

TEST_F(NvmeStoreRanks, AreNamedInErrorsBesideTheDirectory) {
  const test::SmallMount full = test::SmallMount::memory("tmpfs", "size=1m");
  if (!full.mounted()) GTEST_SKIP() << full.reason();
  NvmeOptions options = options_of(3);
  options.paths = {full.path()};
  NvmeStore store(options, budget_);
  try {
    store.create("weights", 4 << 20);
    ADD_FAILURE() << "there is no such space";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("weights of rank 3"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(full.path().string()), std::string::npos) << error.what();
  }
}

TEST_F(NvmeStoreRanks, LeaveNothingToTheNextJobWhenAllAreKilled) {
  for (int job = 0; job < 3; ++job) {
    std::vector<test::ChildProcess> ranks;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        NvmeStore store(options_of(rank), budget_);
        for (;;) use(store, rank);  // whenever it is killed, requests are in flight
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50 + 20 * job));
    for (test::ChildProcess& rank : ranks) rank.kill();
    for (test::ChildProcess& rank : ranks) EXPECT_EQ(WTERMSIG(rank.wait()), SIGKILL);

    EXPECT_TRUE(fs::is_empty(directory_.path()));
    DriveTokens next(job_, drive_of(directory_.path()), 4);
    unsigned taken = 0;
    while (next.take()) ++taken;
    EXPECT_EQ(taken, 4u) << "the dead still hold some";
  }
}

}  // namespace
}  // namespace strata::nvme
