// Processes with several queues each, all on the tokens of one drive: together they keep to the limit, and all end.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

#include "core/bytes.h"
#include "nvme/drive_tokens.h"
#include "nvme/io_queue.h"
#include "support/child_process.h"
#include "support/test_seed.h"

namespace strata::test {
namespace {

constexpr std::size_t kBlock = kPageBytes;

// What all processes see of the drive.
struct SharedDrive {
  std::atomic<int> in_flight{0};
  std::atomic<int> most{0};
  std::atomic<int> started{0};
  std::atomic<int> requests{0};
};

// Completes one request at a time, in any order, after having let others run for a while.
class SharedDriveBackend final : public nvme::IoBackend {
 public:
  SharedDriveBackend(SharedDrive& drive, std::uint64_t seed) : drive_(drive), random_(seed) {}

  std::string_view name() const override { return "shared drive"; }

  void submit(const nvme::IoRequest& request) override {
    pending_.push_back(request);
    ++drive_.requests;
    const int now = ++drive_.in_flight;
    int most = drive_.most;
    while (now > most && !drive_.most.compare_exchange_weak(most, now)) {
    }
  }

  std::size_t complete(std::span<nvme::IoCompletion> out) override {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return woken_ || !pending_.empty(); });
      if (woken_) {
        woken_ = false;
        return 0;
      }
    }
    for (auto i = random_() % 4; i > 0; --i) ::sched_yield();
    std::swap(pending_[random_() % pending_.size()], pending_.back());
    const nvme::IoRequest request = pending_.back();
    pending_.pop_back();
    --drive_.in_flight;
    out[0] = {request.token, static_cast<std::int64_t>(request.bytes)};
    return 1;
  }

  void wake() override {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    changed_.notify_one();
  }

 private:
  SharedDrive& drive_;
  std::mt19937_64 random_;
  std::vector<nvme::IoRequest> pending_;  // of the queue's thread
  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = false;  // guarded by mutex_
};

struct Case {
  std::string job;
  unsigned limit;
  std::size_t processes;
  std::size_t queues;  // in each
  std::size_t transfers;
};

// One queue: transfers of random length, a few at a time, with pauses.
void use(const Case& what, SharedDrive& drive, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  nvme::DriveTokens tokens(what.job, "drive", what.limit);
  nvme::IoMeter meter;
  std::vector<std::byte> memory(64 * kBlock);
  nvme::Extent extent;
  extent.bytes = extent.padded_bytes = memory.size();
  nvme::IoQueue queue([&] { return std::make_unique<SharedDriveBackend>(drive, seed); },
                      {.block_bytes = kBlock, .depth = what.limit, .tokens = &tokens}, meter.add_drive("/drive"));
  ++drive.started;
  while (drive.started < static_cast<int>(what.processes * what.queues)) ::sched_yield();
  std::vector<Event> events(1 + random() % 6);
  for (std::size_t i = 0; i < what.transfers; ++i) {
    Event& event = events[i % events.size()];
    if (random() % 10 == 0) {
      for (const Event& each : events) each.wait();
    }
    event.wait();
    event = queue.submit({random() % 2 == 0 ? nvme::IoOp::Read : nvme::IoOp::Write, &extent, 0, memory.data(),
                          (1 + random() % 64) * kBlock});
  }
  for (const Event& event : events) event.wait();
}

class DriveTokensProcessesTest : public testing::TestWithParam<std::uint64_t> {};

TEST_P(DriveTokensProcessesTest, KeepToTheLimitTogetherAndAllEnd) {
  const std::uint64_t seed = test_seed(GetParam());
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const Case what{.job = std::to_string(::getpid()) + " " + std::to_string(seed),
                  .limit = 1 + static_cast<unsigned>(random() % 32),
                  .processes = 1 + random() % 4,
                  .queues = 1 + random() % 3,
                  .transfers = 300};
  void* const memory = ::mmap(nullptr, sizeof(SharedDrive), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  SharedDrive& drive = *new (memory) SharedDrive;

  std::vector<ChildProcess> processes;
  for (std::size_t process = 0; process < what.processes; ++process) {
    processes.emplace_back([&, process] {
      std::vector<std::jthread> queues;
      for (std::size_t i = 0; i < what.queues; ++i) {
        queues.emplace_back([&, i] { use(what, drive, seed + 100 * process + i); });
      }
    });
  }
  for (ChildProcess& process : processes) EXPECT_EQ(process.wait(), 0);

  const std::size_t members = what.processes * what.queues;
  EXPECT_EQ(drive.in_flight, 0);
  EXPECT_GE(drive.requests, static_cast<int>(members * what.transfers));
  EXPECT_LE(drive.most, static_cast<int>(what.limit + members - 1));
  (void)::munmap(memory, sizeof(SharedDrive));
}

INSTANTIATE_TEST_SUITE_P(Seeds, DriveTokensProcessesTest, testing::Range<std::uint64_t>(1, 13));

}  // namespace
}  // namespace strata::test
