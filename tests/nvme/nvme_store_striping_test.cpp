// NvmeStore on several paths: where chunks go, and that their bytes stay exact while they move.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include "core/bytes.h"
#include "core/error.h"
#include "nvme/nvme_store.h"
#include "support/patterned_bytes.h"
#include "support/small_mount.h"
#include "support/tampering_io_backend.h"
#include "support/temp_dir.h"

namespace strata::nvme {
namespace {

namespace fs = std::filesystem;
using namespace literals;
using SimulatedTime = std::atomic<std::int64_t>;  // nanoseconds
constexpr std::uint64_t kChunk = 64_KiB;

PathRates::Clock::time_point time_point(std::int64_t nanoseconds) {
  return PathRates::Clock::time_point(std::chrono::nanoseconds(nanoseconds));
}

// Paths whose requests take simulated time. With one transfer in flight at a time the store measures it exactly.
class StripingTest : public testing::Test {
 protected:
  NvmeOptions options(const std::vector<fs::path>& paths) {
    NvmeOptions result;
    result.paths = paths;
    result.chunk_bytes = kChunk;
    result.checksums = true;
    result.now = [this] { return time_point(now_); };
    return result;
  }
  // Path i moves `gigabytes_per_second[i]`, which may change while nothing is in flight.
  void make_store(const NvmeOptions& options, const std::vector<double>& gigabytes_per_second) {
    make_store(options, gigabytes_per_second, budget_);
  }
  void make_store(const NvmeOptions& options, const std::vector<double>& gigabytes_per_second, Budget& budget) {
    speeds_ = gigabytes_per_second;
    store_.emplace(options, budget, [this](const BackendOptions& backend) -> std::unique_ptr<IoBackend> {
      const std::size_t path = made_++;
      return std::make_unique<test::TamperingIoBackend>(make_io_backend(backend), [this, path](IoRequest& request) {
        const std::lock_guard open(gate_);
        now_ += static_cast<std::int64_t>(static_cast<double>(request.bytes) / speeds_[path]);
        return test::TamperingIoBackend::Verdict::Perform;
      });
    });
  }
  std::vector<fs::path> two_directories() const { return {a_.path(), b_.path()}; }

  // Writes every chunk of the blob whole, with new contents.
  void rewrite(BlobId blob) {
    contents_ = test::random_bytes(contents_.size(), ++seed_);
    for (std::uint64_t at = 0; at < contents_.size(); at += kChunk) {
      const std::uint64_t bytes = std::min<std::uint64_t>(kChunk, contents_.size() - at);
      store_->write(blob, at, std::span(contents_).subspan(at, bytes)).wait();
    }
  }
  // One at a time: there is one simulated clock for all paths.
  void expect_contents(BlobId blob) {
    std::vector<std::byte> received(contents_.size());
    for (std::uint64_t at = 0; at < contents_.size(); at += kChunk) {
      const std::uint64_t bytes = std::min<std::uint64_t>(kChunk, contents_.size() - at);
      store_->read(blob, at, std::span(received).subspan(at, bytes), IoUrgency::Demand).wait();
    }
    EXPECT_EQ(received, contents_);
  }
  void read_every_chunk(BlobId blob) {
    std::vector<std::byte> received(kChunk);
    for (std::uint64_t at = 0; at + kChunk <= contents_.size(); at += kChunk) {
      store_->read(blob, at, received, IoUrgency::Demand).wait();
    }
  }
  double share_of_first() const {
    const auto first = static_cast<double>(store_->bytes_on_path(0));
    return first / (first + static_cast<double>(store_->bytes_on_path(1)));
  }
  // Rewrites until the first path's share is near `share`; the time limit is a guard against hangs.
  bool settles_at(BlobId blob, double share) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (std::abs(share_of_first() - share) > 0.03) {
      if (std::chrono::steady_clock::now() > limit) return false;
      rewrite(blob);
      expect_contents(blob);
    }
    return true;
  }

  test::TempDir a_;
  test::TempDir b_;
  Budget budget_{"nvme", 1_GiB};
  SimulatedTime now_{0};
  std::mutex gate_;  // while the test holds it, no request goes to a drive
  std::atomic<std::size_t> made_{0};
  std::vector<double> speeds_;
  std::vector<std::byte> contents_ = std::vector<std::byte>(128 * kChunk + 100);
  std::uint64_t seed_ = 0;
  std::optional<NvmeStore> store_;
};

TEST_F(StripingTest, DealsNewChunksEquallyWhenNothingIsKnown) {
  make_store(options(two_directories()), {1, 1});
  store_->create("blob", contents_.size());
  EXPECT_NEAR(share_of_first(), 0.5, 0.01);
}

TEST_F(StripingTest, DealsNewChunksByTheRatesOfTheProfiles) {
  NvmeOptions with_profiles = options(two_directories());
  with_profiles.profiles.resize(2);
  with_profiles.profiles[0].read_rate = with_profiles.profiles[0].write_rate = 3e9;
  with_profiles.profiles[1].read_rate = with_profiles.profiles[1].write_rate = 1e9;
  make_store(with_profiles, {1, 1});
  store_->create("blob", contents_.size());
  EXPECT_NEAR(share_of_first(), 0.75, 0.01);
}

TEST_F(StripingTest, MovesBytesUntilTheyFollowTheSpeeds) {
  make_store(options(two_directories()), {3, 1});
  const BlobId blob = store_->create("blob", contents_.size());
  EXPECT_TRUE(settles_at(blob, 0.75)) << share_of_first();
  const std::uint64_t settled = store_->bytes_on_path(0);
  for (int i = 0; i < 10; ++i) rewrite(blob);
  EXPECT_LE(std::abs(static_cast<double>(store_->bytes_on_path(0)) - static_cast<double>(settled)), 4.0 * kChunk);
  expect_contents(blob);
}

TEST_F(StripingTest, FollowsAPathThatBecomesSlow) {
  make_store(options(two_directories()), {2, 2});
  const BlobId blob = store_->create("blob", contents_.size());
  EXPECT_TRUE(settles_at(blob, 0.5)) << share_of_first();
  speeds_ = {0.2, 1.8};
  EXPECT_TRUE(settles_at(blob, 0.1)) << share_of_first();
  speeds_ = {1.2, 0.8};
  EXPECT_TRUE(settles_at(blob, 0.6)) << share_of_first();
}

TEST_F(StripingTest, DealsALaterBlobByTheMeasuredRates) {
  make_store(options(two_directories()), {3, 1});
  const BlobId blob = store_->create("blob", contents_.size());
  ASSERT_TRUE(settles_at(blob, 0.75));
  store_->create("later", 100 * kChunk);
  EXPECT_NEAR(share_of_first(), 0.75, 0.03);
}

// The port forbids to write a range while another request on it is in flight. Whoever does it all the same gets
// undefined bytes in that range, but the request in flight must not hit a place that belongs to another chunk by then.
TEST_F(StripingTest, DoesNotMoveAChunkWithARequestInFlight) {
  make_store(options(two_directories()), {0.2, 1.8});
  const BlobId blob = store_->create("blob", contents_.size());
  read_every_chunk(blob);  // measures both paths
  const std::uint64_t before = store_->bytes_on_path(0);
  std::vector<std::byte> other(kChunk);
  for (int round = 0; round < 3; ++round) {
    for (std::uint64_t at = 0; at + kChunk <= contents_.size(); at += kChunk) {
      std::vector<Event> events;
      {
        const std::lock_guard closed(gate_);
        events.push_back(store_->write(blob, at + 100, std::span(other).first(10)));
        events.push_back(store_->write(blob, at, std::span(contents_).subspan(at, kChunk)));
      }
      when_all(events).wait();
    }
  }
  EXPECT_EQ(store_->bytes_on_path(0), before);
  EXPECT_TRUE(settles_at(blob, 0.1)) << "nothing would have moved anyway";
}

TEST_F(StripingTest, FinishesFollowUpsOnOtherPathsBeforeItIsDestroyed) {
  make_store(options(two_directories()), {1, 1});
  const std::vector<BlobId> blobs{store_->create("a", kChunk), store_->create("b", kChunk)};
  const std::vector<std::byte> sent = test::random_bytes(kChunk, 1);
  std::atomic<int> done{0};
  std::function<void(const std::exception_ptr&)> next = [&](const std::exception_ptr& error) {
    EXPECT_EQ(error, nullptr);
    const int step = ++done;
    if (step < 50) store_->write(blobs[static_cast<std::size_t>(step % 2)], 0, sent).on_complete(next);
  };
  store_->write(blobs[0], 0, sent).on_complete(next);
  store_.reset();
  EXPECT_EQ(done, 50);
}

TEST_F(StripingTest, StaysWhereItIsWhenTheBudgetHasNoRoomForOneMoreChunk) {
  contents_.resize(128 * kChunk);
  Budget exact("nvme", contents_.size());
  make_store(options(two_directories()), {3, 1}, exact);
  const BlobId blob = store_->create("blob", contents_.size());
  for (int i = 0; i < 8; ++i) rewrite(blob);
  EXPECT_EQ(store_->bytes_on_path(0), 64 * kChunk);
  EXPECT_EQ(exact.peak(), 128 * kChunk);
  expect_contents(blob);
  store_.reset();  // before its budget
}

TEST_F(StripingTest, StaysWhereItIsWhenTheFasterPathIsFull) {
  const test::SmallMount small = test::SmallMount::memory("tmpfs", "size=2m");
  if (!small.mounted()) GTEST_SKIP() << small.reason();
  make_store(options({small.path(), a_.path()}), {9, 1});
  const BlobId blob = store_->create("blob", contents_.size());
  for (int i = 0; i < 8; ++i) rewrite(blob);
  expect_contents(blob);
  EXPECT_LE(store_->bytes_on_path(0), 2_MiB);
  EXPECT_GE(store_->bytes_on_path(0), 1_MiB);
}

TEST_F(StripingTest, GivesTheSpaceBackThatChunksLeave) {
  const test::SmallMount mount = test::SmallMount::memory("tmpfs", "size=64m");
  if (!mount.mounted()) GTEST_SKIP() << mount.reason();
  make_store(options({mount.path(), a_.path()}), {1, 9});
  const BlobId blob = store_->create("blob", contents_.size());
  const auto used = [&] {
    const fs::space_info space = fs::space(mount.path());
    return space.capacity - space.free;
  };
  const std::uint64_t before = used();
  EXPECT_TRUE(settles_at(blob, 0.1));
  EXPECT_LT(used(), before / 2);
  EXPECT_LE(budget_.used(), 132 * kChunk) << "chunks that moved are paid for twice";
}

// Random operations of several threads on blobs of their own, while a clock without sense makes chunks move all the
// time. Checksums find what a comparison would not: bytes of the right value that came from the wrong place.
class StripingPropertyTest : public testing::TestWithParam<BackendKind> {};

TEST_P(StripingPropertyTest, KeepsEveryByteWhileChunksMove) {
  constexpr std::uint64_t kSeed = 4711;
  constexpr std::size_t kThreads = 3;
  constexpr std::uint64_t kSmallChunk = 8_KiB;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const test::TempDir a;
  const test::TempDir b;
  const test::TempDir c;
  Budget budget("nvme", 64_MiB);
  NvmeOptions options;
  options.paths = {a.path(), b.path(), c.path()};
  options.block_bytes = 4096;
  options.queue_depth = 3;
  options.backend = GetParam();
  options.chunk_bytes = kSmallChunk;
  options.checksums = true;
  SimulatedTime ticks{0};
  options.now = [&ticks] {
    const std::int64_t tick = ++ticks;
    return time_point(tick * 1'000 + tick / 512 % 7 * 1'000'000 * (tick / 64 % 3));  // jumps, and not always forward
  };
  std::atomic<std::size_t> mismatches{0};
  std::atomic<std::size_t> moves{0};  // seen; each of the three blobs that are made counts as one at most
  {
    NvmeStore store(options, budget);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(kSeed + t);
        std::vector<std::byte> model = test::random_bytes(40 * kSmallChunk + 1234, t);
        const BlobId blob = store.create("blob", model.size());
        store.write(blob, 0, model).wait();
        std::uint64_t on_first = store.bytes_on_path(0);
        for (int i = 0; i < 600; ++i) {
          const std::uint64_t before = std::exchange(on_first, store.bytes_on_path(0));
          moves += before != on_first ? 1u : 0u;
          const bool chunks = random() % 4 != 0;  // whole chunks can move
          std::uint64_t offset = random() % model.size();
          std::uint64_t bytes = 1 + random() % (4 * kSmallChunk);
          if (chunks) {
            offset = offset / kSmallChunk * kSmallChunk;
            bytes = align_up(bytes, kSmallChunk);
          }
          bytes = std::min<std::uint64_t>(bytes, model.size() - offset);
          const auto begin = model.begin() + static_cast<std::ptrdiff_t>(offset);
          if (random() % 3 != 0) {
            const std::vector<std::byte> sent = test::random_bytes(bytes, random());
            std::copy(sent.begin(), sent.end(), begin);
            store.write(blob, offset, sent).wait();
          } else {
            std::vector<std::byte> received(bytes);
            store.read(blob, offset, received, IoUrgency::Demand).wait();
            mismatches += std::equal(received.begin(), received.end(), begin) ? 0u : 1u;
          }
        }
        std::vector<std::byte> received(model.size());
        store.read(blob, 0, received, IoUrgency::Prefetch).wait();
        mismatches += received == model ? 0u : 1u;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(mismatches, 0u);
  EXPECT_GT(moves, 10u);
  EXPECT_EQ(budget.used(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Backends, StripingPropertyTest, testing::Values(BackendKind::Auto, BackendKind::Threads),
                         [](const auto& tried) { return tried.param == BackendKind::Auto ? "Auto" : "Threads"; });

}  // namespace
}  // namespace strata::nvme
