#include "engine/all_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "comm/thread_ranks.h"
#include "core/error.h"
#include "core/local_communicator.h"
#include "support/plain_math.h"
#include "support/run_ranks.h"
#include "support/watchdog.h"

namespace strata::engine {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kRanks = 3;

// Runs fn(comm) on every rank.
template <typename Fn>
void on_ranks(Fn fn) {
  const test::Watchdog watchdog("all ranks");
  test::PlainMath math;
  const auto comms = comm::make_thread_ranks(kRanks, math);
  test::run_ranks(kRanks, [&](std::size_t rank) { fn(*comms[rank]); });
}

// What each rank throws when those in `failing` throw `error`.
template <typename E>
std::map<std::size_t, std::string> thrown(const std::vector<std::size_t>& failing, const E& error) {
  std::map<std::size_t, std::string> texts;
  std::mutex mutex;
  on_ranks([&](Communicator& comm) {
    try {
      on_every_rank(comm, "test", [&] {
        if (std::find(failing.begin(), failing.end(), comm.rank()) != failing.end()) throw error;
      });
    } catch (const E& caught) {  // of this type on every rank
      const std::lock_guard lock(mutex);
      texts[comm.rank()] = caught.what();
    }
    on_every_rank(comm, "test", [] {});  // all are at the same place
  });
  return texts;
}

template <typename E>
void expect_type_travels(const E& error) {
  const std::map<std::size_t, std::string> texts = thrown({1}, error);
  ASSERT_EQ(texts.size(), kRanks);
  EXPECT_EQ(texts.at(1), error.what());
  for (const std::size_t other : {0, 2}) EXPECT_THAT(texts.at(other), HasSubstr("rank 1: "));
}

TEST(AllRanks, AFailureIsThrownOnEveryRankWithItsTypeAndReason) {
  expect_type_travels(ConfigError("a"));
  expect_type_travels(OutOfBudget("b", 3, 2));
  expect_type_travels(DataError("c"));
  expect_type_travels(CorruptionError("d"));
  expect_type_travels(IoError({ENOSPC, "write", "/some/\xff/path", 4096, 7, "free some space"}));
  expect_type_travels(DeviceError("e"));
  expect_type_travels(CommError("f"));
}

TEST(AllRanks, TheReasonOfTheLowestRankThatFailedReachesThoseThatDidNot) {
  const std::map<std::size_t, std::string> texts = thrown({2, 1}, DataError("wrong"));
  EXPECT_EQ(texts.at(0), "rank 1: wrong");
  EXPECT_EQ(texts.at(1), "wrong");
  EXPECT_EQ(texts.at(2), "wrong");
}

TEST(AllRanks, AnIoErrorKeepsItsNumbers) {
  on_ranks([](Communicator& comm) {
    try {
      on_every_rank(comm, "test", [&] {
        if (comm.rank() == 2) throw IoError({ENOSPC, "write", "file", 4096, 7, "hint"});
      });
      ADD_FAILURE() << "passed";
    } catch (const IoError& error) {
      EXPECT_EQ(error.failure().errno_value, ENOSPC);
      EXPECT_EQ(error.failure().path, "file");
      EXPECT_EQ(error.failure().offset_bytes, 4096u);
      EXPECT_EQ(error.failure().bytes, 7u);
      EXPECT_EQ(error.failure().hint, "hint");
    }
  });
}

TEST(AllRanks, AFileSystemFailureIsAnIoErrorThatSaysWhatWasDone) {
  LocalCommunicator alone;
  try {
    on_every_rank(alone, "save it", [] { std::filesystem::create_directory("/no/such/folder"); });
    FAIL() << "passed";
  } catch (const IoError& error) {
    EXPECT_EQ(error.failure().op, "save it");
    EXPECT_EQ(error.failure().errno_value, ENOENT);
  }
}

TEST(AllRanks, OnlyTheFirstRankRunsWhatIsItsAlone) {
  std::atomic<int> runs = 0;
  on_ranks([&](Communicator& comm) {
    on_first_rank(comm, "test", [&] {
      ++runs;
      EXPECT_EQ(comm.rank(), 0u);
    });
    EXPECT_EQ(runs, 1);
  });
}

TEST(AllRanks, OneRankThatSaysSoIsEnough) {
  on_ranks([](Communicator& comm) {
    EXPECT_FALSE(on_any_rank(comm, false));
    EXPECT_TRUE(on_any_rank(comm, comm.rank() == 1));
  });
}

TEST(AllRanks, TextsOfAnyLengthReachAllRanks) {
  on_ranks([](Communicator& comm) {
    const std::string here = "rank " + std::to_string(comm.rank());
    EXPECT_EQ(broadcast_text(comm, here), "rank 0");
    EXPECT_EQ(broadcast_text(comm, here, 2), "rank 2");
    EXPECT_EQ(broadcast_text(comm, comm.rank() == 0 ? "" : "something"), "");
  });
}

}  // namespace
}  // namespace strata::engine
