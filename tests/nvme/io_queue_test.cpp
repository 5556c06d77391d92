#include "nvme/io_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <map>
#include <numeric>
#include <random>

#include "core/bytes.h"
#include "core/error.h"
#include "support/patterned_bytes.h"
#include "support/scripted_io_backend.h"
#include "support/test_seed.h"
#include "support/watchdog.h"

namespace strata::nvme {
namespace {

constexpr std::size_t kBlock = kPageBytes;

// A file in memory, and the extent that covers it.
class IoQueueTest : public testing::Test {
 protected:
  IoQueueTest() : disk_(64 * kBlock) {
    extent_.name = "weights";
    extent_.directory = "/drive";
    extent_.fd = 3;
    extent_.bytes = extent_.padded_bytes = disk_.size();
  }

  std::int64_t perform(const IoRequest& request, std::size_t bytes) {
    std::byte* place = disk_.data() + request.offset;
    if (request.op == IoOp::Read) {
      std::memcpy(request.data, place, bytes);
    } else {
      std::memcpy(place, request.data, bytes);
    }
    return static_cast<std::int64_t>(bytes);
  }
  test::IoScript::Answer honest() {
    return [this](const IoRequest& request) { return perform(request, request.bytes); };
  }
  std::unique_ptr<IoQueue> make_queue(test::IoScript& script, const IoQueueOptions& options) {
    return std::make_unique<IoQueue>([&script] { return std::make_unique<test::ScriptedIoBackend>(script); }, options,
                                     drive_);
  }
  std::unique_ptr<IoQueue> make_queue(test::IoScript& script, unsigned depth) {
    return make_queue(script, {.block_bytes = kBlock, .depth = depth});
  }
  IoTransfer transfer(IoOp op, std::uint64_t offset, std::span<std::byte> memory,
                      IoUrgency urgency = IoUrgency::Demand) {
    return {op, &extent_, offset, memory.data(), memory.size(), urgency};
  }
  static IoError error_of(const Event& event) {
    try {
      event.wait();
    } catch (const IoError& error) {
      return error;
    }
    ADD_FAILURE() << "the transfer succeeded";
    return IoError(IoFailure{});
  }

  std::vector<std::byte> disk_;
  Extent extent_;
  IoMeter meter_;
  DriveMeter& drive_ = meter_.add_drive("/drive");
};

std::vector<std::uint64_t> offsets_of(const std::vector<IoRequest>& requests) {
  std::vector<std::uint64_t> offsets;
  for (const IoRequest& request : requests) offsets.push_back(request.offset);
  return offsets;
}

TEST_F(IoQueueTest, CutsATransferIntoBlocks) {
  test::IoScript script(honest());
  script.allow_all();
  const auto queue = make_queue(script, 2);
  std::vector<std::byte> sent = test::random_bytes(3 * kBlock + 5, 1);
  queue->submit(transfer(IoOp::Write, 10, sent)).wait();
  EXPECT_EQ(offsets_of(script.submitted()),
            (std::vector<std::uint64_t>{10, 10 + kBlock, 10 + 2 * kBlock, 10 + 3 * kBlock}));
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), disk_.begin() + 10));
}

TEST_F(IoQueueTest, NeverHasMoreInFlightThanItsDepth) {
  test::IoScript script(honest());
  script.allow_all();
  const auto queue = make_queue(script, 3);
  std::vector<std::byte> memory(64 * kBlock);
  queue->submit(transfer(IoOp::Read, 0, memory)).wait();
  EXPECT_EQ(script.most_in_flight(), 3u);
}

TEST_F(IoQueueTest, SendsDemandReadsThenPrefetchReadsThenWrites) {
  test::IoScript script(honest());
  const auto queue = make_queue(script, 1);
  std::vector<std::byte> memory(8 * kBlock);
  const auto block = [&](std::size_t i) { return std::span(memory).subspan(i * kBlock, kBlock); };
  std::vector<Event> events;
  events.push_back(queue->submit(transfer(IoOp::Write, 0, block(0))));
  script.wait_for_submitted(1);  // takes the only place, so that the rest waits
  events.push_back(queue->submit(transfer(IoOp::Write, 1 * kBlock, block(1))));
  events.push_back(queue->submit(transfer(IoOp::Read, 2 * kBlock, block(2), IoUrgency::Prefetch)));
  events.push_back(queue->submit(transfer(IoOp::Read, 3 * kBlock, block(3))));
  script.allow_all();
  when_all(events).wait();
  EXPECT_EQ(offsets_of(script.submitted()), (std::vector<std::uint64_t>{0, 3 * kBlock, 2 * kBlock, kBlock}));
}

TEST_F(IoQueueTest, LetsAWaitingWriteThroughBetweenEndlessReads) {
  test::IoScript script(honest());
  const auto queue = make_queue(script, 1);
  std::vector<std::byte> memory(40 * kBlock);
  std::vector<std::byte> sent(kBlock);
  std::vector<Event> events{queue->submit(transfer(IoOp::Read, 0, memory))};
  script.wait_for_submitted(1);
  events.push_back(queue->submit(transfer(IoOp::Write, 50 * kBlock, sent)));
  script.allow_all();
  when_all(events).wait();
  const std::vector<std::uint64_t> offsets = offsets_of(script.submitted());
  const auto write = std::find(offsets.begin(), offsets.end(), 50 * kBlock);
  EXPECT_LE(write - offsets.begin(), static_cast<std::ptrdiff_t>(IoTurns::kFairShare));
}

TEST_F(IoQueueTest, ResumesAShortTransferWhereItStopped) {
  test::IoScript script([this](const IoRequest& request) { return perform(request, (request.bytes + 2) / 3); });
  script.allow_all();
  const auto queue = make_queue(script, 2);
  std::vector<std::byte> sent = test::random_bytes(10 * kBlock + 77, 2);
  queue->submit(transfer(IoOp::Write, 5, sent)).wait();
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), disk_.begin() + 5));
  std::vector<std::byte> received(sent.size());
  queue->submit(transfer(IoOp::Read, 5, received)).wait();
  EXPECT_EQ(received, sent);
}

TEST_F(IoQueueTest, ResumesADirectTransferAtAnAlignedPlace) {
  extent_.alignment = 512;
  test::IoScript script(
      [this](const IoRequest& request) { return perform(request, std::min<std::size_t>(700, request.bytes)); });
  script.allow_all();
  const auto queue = make_queue(script, 1);
  std::vector<std::byte> sent = test::random_bytes(kBlock, 2);
  queue->submit(transfer(IoOp::Write, 0, sent)).wait();
  for (const std::uint64_t offset : offsets_of(script.submitted())) EXPECT_EQ(offset % 512, 0u);
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), disk_.begin()));
}

TEST_F(IoQueueTest, TriesAgainAfterEagainAndEintr) {
  int calls = 0;
  test::IoScript script([&](const IoRequest& request) -> std::int64_t {
    ++calls;
    if (calls <= 2) return calls == 1 ? -EAGAIN : -EINTR;
    return perform(request, request.bytes);
  });
  script.allow_all();
  const auto queue = make_queue(script, 1);
  disk_ = test::random_bytes(disk_.size(), 3);
  std::vector<std::byte> received(kBlock);
  queue->submit(transfer(IoOp::Read, 0, received)).wait();
  EXPECT_EQ(calls, 3);
  EXPECT_TRUE(std::equal(received.begin(), received.end(), disk_.begin()));
}

TEST_F(IoQueueTest, GivesUpWhenNothingMovesForManyAttempts) {
  test::IoScript script([](const IoRequest&) { return -EAGAIN; });
  script.allow_all();
  const auto queue = make_queue(script, 1);
  std::vector<std::byte> memory(kBlock);
  EXPECT_EQ(error_of(queue->submit(transfer(IoOp::Read, 0, memory))).failure().errno_value, EAGAIN);
}

TEST_F(IoQueueTest, CallsAReadThatGivesNothingAnUnexpectedEndOfFile) {
  test::IoScript script([](const IoRequest&) { return 0; });
  script.allow_all();
  const auto queue = make_queue(script, 1);
  std::vector<std::byte> memory(kBlock);
  const IoError error = error_of(queue->submit(transfer(IoOp::Read, 0, memory)));
  EXPECT_NE(std::string(error.what()).find("unexpected end of file"), std::string::npos) << error.what();
}

TEST_F(IoQueueTest, RefusesAResultLargerThanTheRequest) {
  test::IoScript script([](const IoRequest& request) { return static_cast<std::int64_t>(request.bytes) + 1; });
  script.allow_all();
  const auto queue = make_queue(script, 1);
  std::vector<std::byte> memory(kBlock);
  EXPECT_EQ(error_of(queue->submit(transfer(IoOp::Read, 0, memory))).failure().errno_value, EIO);
}

TEST_F(IoQueueTest, TreatsNoSpaceAfterAShortWriteAsAnErrorWithDirectoryAndBytes) {
  int calls = 0;
  test::IoScript script(
      [&](const IoRequest& request) -> std::int64_t { return ++calls == 1 ? perform(request, 1000) : -ENOSPC; });
  script.allow_all();
  const auto queue = make_queue(script, 1);
  std::vector<std::byte> memory(kBlock);
  const IoError error = error_of(queue->submit(transfer(IoOp::Write, 0, memory)));
  EXPECT_EQ(error.failure().errno_value, ENOSPC);
  EXPECT_EQ(error.failure().op, "write");
  EXPECT_EQ(error.failure().offset_bytes, 1000u);
  const std::string text = error.what();
  for (const char* part : {"/drive", "weights", "1000 of 4096 bytes", "needs 3.02 KiB", "free"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in: " << text;
  }
}

TEST_F(IoQueueTest, FailsATransferOnlyWhenNoneOfItsRequestsIsInFlight) {
  test::IoScript script([](const IoRequest&) { return -EIO; });
  const auto queue = make_queue(script, 2);
  std::vector<std::byte> memory(4 * kBlock);
  const Event event = queue->submit(transfer(IoOp::Read, 0, memory));
  script.wait_for_submitted(2);
  script.allow(1);
  // A second transfer is sent only after the queue has examined the first failure.
  std::vector<std::byte> other(kBlock);
  const Event later = queue->submit(transfer(IoOp::Read, 8 * kBlock, other));
  script.wait_for_submitted(3);
  EXPECT_FALSE(event.ready());
  script.allow_all();
  EXPECT_EQ(error_of(event).failure().errno_value, EIO);
  EXPECT_EQ(script.submitted().size(), 3u) << "a failed transfer sent more requests";
  EXPECT_THROW(later.wait(), IoError);
}

TEST_F(IoQueueTest, FailsOnlyTheTransferThatFailed) {
  test::IoScript script([this](const IoRequest& request) -> std::int64_t {
    return request.offset == 0 ? -EIO : perform(request, request.bytes);
  });
  script.allow_all();
  const auto queue = make_queue(script, 4);
  std::vector<std::byte> memory(2 * kBlock);
  const Event bad = queue->submit(transfer(IoOp::Read, 0, std::span(memory).first(kBlock)));
  const Event good = queue->submit(transfer(IoOp::Read, kBlock, std::span(memory).last(kBlock)));
  EXPECT_THROW(bad.wait(), IoError);
  EXPECT_NO_THROW(good.wait());
}

TEST_F(IoQueueTest, FailsEverythingWhenTheBackendBreaks) {
  test::IoScript script([](const IoRequest&) -> std::int64_t {
    throw IoError({ENXIO, "io_uring_enter", "", 0, 0, ""});
  });
  const auto queue = make_queue(script, 1);
  std::vector<std::byte> memory(3 * kBlock);
  const Event in_flight = queue->submit(transfer(IoOp::Read, 0, memory));
  const Event waiting = queue->submit(transfer(IoOp::Write, 0, memory));
  script.allow_all();
  EXPECT_EQ(error_of(in_flight).failure().errno_value, ENXIO);
  EXPECT_EQ(error_of(waiting).failure().errno_value, ENXIO);
  EXPECT_EQ(error_of(queue->submit(transfer(IoOp::Read, 0, memory))).failure().errno_value, ENXIO);
}

TEST_F(IoQueueTest, ThrowsWhatTheBackendMakerThrows) {
  const auto refuse = []() -> std::unique_ptr<IoBackend> { throw IoError({EPERM, "io_uring_setup", "", 0, 0, ""}); };
  EXPECT_THROW(IoQueue(refuse, {.block_bytes = kBlock, .depth = 1}, drive_), IoError);
}

TEST_F(IoQueueTest, FinishesEverythingBeforeItIsDestroyed) {
  test::IoScript script(honest());
  std::vector<std::byte> sent = test::random_bytes(20 * kBlock, 4);
  auto queue = make_queue(script, 2);
  const Event event = queue->submit(transfer(IoOp::Write, 0, sent));
  script.allow_all();
  queue.reset();
  EXPECT_TRUE(event.ready());
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), disk_.begin()));
}

TEST_F(IoQueueTest, TakesATransferFromACompletionCallback) {
  test::IoScript script(honest());
  script.allow_all();
  disk_ = test::random_bytes(disk_.size(), 5);
  std::vector<std::byte> first(kBlock);
  std::vector<std::byte> second(kBlock);
  auto queue = make_queue(script, 1);
  IoQueue* const taker = queue.get();
  taker->submit(transfer(IoOp::Read, 0, first)).on_complete([&, taker](const std::exception_ptr&) {
    taker->submit(transfer(IoOp::Read, kBlock, second));
  });
  queue.reset();  // also finishes what the callback asked for
  EXPECT_TRUE(std::equal(second.begin(), second.end(), disk_.begin() + kBlock));
}

TEST_F(IoQueueTest, CountsRequestsAndBusyTime) {
  test::IoScript script(honest());
  script.allow_all();
  const auto queue = make_queue(script, 2);
  std::vector<std::byte> memory(5 * kBlock);
  queue->submit(transfer(IoOp::Read, 0, memory)).wait();
  const BlobStoreStats stats = meter_.stats();
  EXPECT_EQ(stats.requests, 5u);
  EXPECT_GT(stats.read_busy_seconds, 0);
  EXPECT_EQ(stats.write_busy_seconds, 0);
}

TEST_F(IoQueueTest, SendsBurstsOfOneDirection) {
  test::IoScript script(honest());
  const auto queue = make_queue(script, {.block_bytes = kBlock, .depth = 1, .burst_bytes = 3 * kBlock});
  std::vector<std::byte> memory(10 * kBlock);
  const auto part = [&](std::size_t begin, std::size_t blocks) {
    return std::span(memory).subspan(begin * kBlock, blocks * kBlock);
  };
  std::vector<Event> events{queue->submit(transfer(IoOp::Read, 0, part(0, 1), IoUrgency::Prefetch))};
  script.wait_for_submitted(1);  // takes the only place, so that the rest waits
  events.push_back(queue->submit(transfer(IoOp::Write, 20 * kBlock, part(5, 5))));
  events.push_back(queue->submit(transfer(IoOp::Read, kBlock, part(1, 4), IoUrgency::Prefetch)));
  script.allow_all();
  when_all(events).wait();
  std::string order;
  for (const IoRequest& request : script.submitted()) order += request.op == IoOp::Read ? 'r' : 'w';
  EXPECT_EQ(order, "rrrwwwrrww");
}

TEST_F(IoQueueTest, RecordsEachRequestInTheTrace) {
  Trace trace;
  test::IoScript script([this](const IoRequest& request) { return perform(request, request.bytes); });
  script.allow_all();
  const auto queue = make_queue(script, {.block_bytes = kBlock, .depth = 2, .trace = &trace, .trace_name = "nvme3"});
  std::vector<std::byte> memory(2 * kBlock + 100);
  queue->submit(transfer(IoOp::Read, 0, memory)).wait();
  queue->submit(transfer(IoOp::Write, 0, std::span(memory).first(50))).wait();
  const std::vector<Trace::Span> spans = trace.spans();
  ASSERT_EQ(spans.size(), 4u);
  std::vector<std::uint64_t> bytes;
  for (const Trace::Span& span : spans) {
    EXPECT_EQ(span.name, "weights");
    EXPECT_LE(span.begin, span.end);
    EXPECT_EQ(span.row, trace.row(bytes.size() < 3 ? "nvme3 read" : "nvme3 write", Trace::Row::Overlapping));
    bytes.push_back(span.bytes);
  }
  EXPECT_EQ(bytes, (std::vector<std::uint64_t>{kBlock, kBlock, 100, 50}));
}

TEST_F(IoQueueTest, CountsWhatTheDriveMoved) {
  test::IoScript script(
      [this](const IoRequest& request) { return perform(request, std::min<std::size_t>(request.bytes, 3000)); });
  script.allow_all();
  const auto queue = make_queue(script, 2);
  std::vector<std::byte> memory(2 * kBlock);
  queue->submit(transfer(IoOp::Read, 0, memory)).wait();
  queue->submit(transfer(IoOp::Write, 0, std::span(memory).first(kBlock))).wait();
  const DriveStats stats = meter_.stats().drives.at(0);
  EXPECT_EQ(stats.bytes_read, 2 * kBlock);
  EXPECT_EQ(stats.bytes_written, kBlock);
}

// Random transfers, bursts and depths. That neither direction starves is a property of IoTurns.
class IoQueueOrderProperty : public IoQueueTest {
 protected:
  static std::size_t lane_of(std::uint64_t offset) { return offset / (kLaneBlocks * kBlock); }

  void run_case(std::uint64_t seed) {
    SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed));
    const test::Watchdog watchdog("the case of STRATA_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto pick = [&](std::uint64_t low, std::uint64_t high) { return low + random() % (high - low + 1); };
    const std::uint64_t burst = pick(0, 3) == 0 ? 0 : pick(1, 6 * kBlock);
    test::IoScript script(honest());
    const auto queue =
        make_queue(script, {.block_bytes = kBlock, .depth = static_cast<unsigned>(pick(1, 4)), .burst_bytes = burst});
    // A lane is a region of the disk, whose transfers lie one after the other: so order within a lane is order of
    // offsets.
    std::vector<std::byte> memory(disk_.size());
    std::array<std::uint64_t, kLaneCount> ends{};
    std::vector<Event> events;
    for (int i = 0; i < 60; ++i) {
      const std::size_t lane = pick(0, kLaneCount - 1);
      const std::uint64_t bytes = pick(1, 3 * kBlock);
      if (ends[lane] + bytes > kLaneBlocks * kBlock) continue;
      const std::uint64_t offset = lane * kLaneBlocks * kBlock + ends[lane];
      ends[lane] += bytes;
      events.push_back(
          queue->submit(transfer(lane == 2 ? IoOp::Write : IoOp::Read, offset, std::span(memory).subspan(offset, bytes),
                                 lane == 1 ? IoUrgency::Prefetch : IoUrgency::Demand)));
      if (pick(0, 2) == 0) script.allow(1);
    }
    script.allow_all();
    when_all(events).wait();
    std::array<std::uint64_t, kLaneCount> next{};
    for (const IoRequest& request : script.submitted()) {
      const std::size_t lane = lane_of(request.offset);
      ASSERT_EQ(request.offset - lane * kLaneBlocks * kBlock, next[lane]) << "lane " << lane << " is out of order";
      next[lane] += request.bytes;
    }
    EXPECT_EQ(next, ends);
  }

  static constexpr std::size_t kLaneCount = 3;  // demand, prefetch, write
  static constexpr std::size_t kLaneBlocks = 21;
};

TEST_F(IoQueueOrderProperty, KeepsTheOrderOfEachLaneAndSendsEverything) {
  const std::uint64_t first = test::test_seed(20250601);
  std::cout << "first seed " << first << '\n';
  for (std::uint64_t i = 0; i < 200 && !HasFatalFailure(); ++i) run_case(first + i);
}

}  // namespace
}  // namespace strata::nvme
