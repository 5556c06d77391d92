// Queues that share the tokens of a drive.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <stdexcept>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "nvme/drive_tokens.h"
#include "nvme/io_queue.h"
#include "support/scripted_io_backend.h"
#include "support/watchdog.h"

namespace strata::nvme {
namespace {

constexpr std::size_t kBlock = kPageBytes;
constexpr std::size_t kBlocks = 32;

std::int64_t succeed(const IoRequest& request) {
  return static_cast<std::int64_t>(request.bytes);
}

// A queue on a scripted drive, with the tokens of `job`.
class Member {
 public:
  Member(const std::string& job, unsigned limit, test::IoScript::Answer answer = succeed)
      : script(std::move(answer)), tokens(job + std::to_string(::getpid()), "drive", limit) {
    extent_.bytes = extent_.padded_bytes = kBlocks * kBlock;
    queue.emplace([this] { return std::make_unique<test::ScriptedIoBackend>(script); },
                  IoQueueOptions{.block_bytes = kBlock, .depth = limit, .tokens = &tokens}, meter_.add_drive("/drive"));
  }
  ~Member() { script.allow_all(); }

  Event move(IoOp op, std::size_t blocks) {
    return queue->submit({op, &extent_, 0, memory_.data(), blocks * kBlock, IoUrgency::Demand});
  }
  // How many requests were sent, once there are so many.
  std::size_t sent(std::size_t at_least) { return script.wait_for_submitted(at_least).size(); }

  test::IoScript script;
  DriveTokens tokens;

 private:
  Extent extent_;
  std::vector<std::byte> memory_{kBlocks * kBlock};
  IoMeter meter_;

 public:
  std::optional<IoQueue> queue;  // destroyed first
};

TEST(IoQueueTokens, AreHeldByRequestsInFlight) {
  const test::Watchdog watchdog("IoQueueTokens");
  Member member("held", 4);
  DriveTokens other("held" + std::to_string(::getpid()), "drive", 4);
  const Event event = member.move(IoOp::Read, 8);
  member.sent(4);
  EXPECT_TRUE(other.take());
  EXPECT_FALSE(other.take()) << "four are in flight, and the one of `other`";
  other.give_back();

  member.script.allow_all();
  event.wait();
  member.queue.reset();  // all tokens are back when the thread has ended

  unsigned taken = 0;
  while (other.take()) ++taken;
  EXPECT_EQ(taken, 4u);
}

TEST(IoQueueTokens, KeepTwoQueuesToOneDepthTogether) {
  const test::Watchdog watchdog("IoQueueTokens");
  Member first("two", 4);
  Member second("two", 4);
  const Event a = first.move(IoOp::Read, 12);
  first.sent(4);
  const Event b = second.move(IoOp::Read, 12);
  EXPECT_EQ(second.sent(1), 1u);
  // As long as only the second completes requests, it has one at a time.
  second.script.allow(5);
  EXPECT_EQ(second.sent(6), 6u);
  EXPECT_EQ(second.script.most_in_flight(), 1u);

  first.script.allow_all();
  second.script.allow_all();
  a.wait();
  b.wait();
  EXPECT_EQ(first.sent(0), 12u);
  EXPECT_EQ(second.sent(0), 12u);
}

TEST(IoQueueTokens, LeaveWritesTheirTurns) {
  const test::Watchdog watchdog("IoQueueTokens");
  Member member("turns", 2);
  DriveTokens other("turns" + std::to_string(::getpid()), "drive", 2);
  ASSERT_TRUE(other.take());  // so that the member is refused after each request
  const Event reads = member.move(IoOp::Read, kBlocks);
  member.sent(1);
  const Event write = member.move(IoOp::Write, 1);
  member.script.allow_all();
  reads.wait();
  write.wait();

  const std::vector<IoRequest> sent = member.script.submitted();
  for (std::size_t i = 0; i < sent.size(); ++i) {
    if (sent[i].op == IoOp::Write) {
      EXPECT_LE(i, 1 + IoTurns::kFairShare);
    }
  }
}

TEST(IoQueueTokens, ComeBackFromTransfersThatFail) {
  const test::Watchdog watchdog("IoQueueTokens");
  Member member("fail", 4, [](const IoRequest&) -> std::int64_t { return -EIO; });
  member.script.allow_all();
  EXPECT_THROW(member.move(IoOp::Read, 8).wait(), IoError);
  member.queue.reset();

  DriveTokens other("fail" + std::to_string(::getpid()), "drive", 4);
  unsigned taken = 0;
  while (other.take()) ++taken;
  EXPECT_EQ(taken, 4u);
}

TEST(IoQueueTokens, ComeBackWhenTheBackendBreaks) {
  const test::Watchdog watchdog("IoQueueTokens");
  Member member("break", 4, [](const IoRequest&) -> std::int64_t { throw std::runtime_error("the ring is broken"); });
  member.script.allow_all();
  EXPECT_THROW(member.move(IoOp::Read, 8).wait(), std::runtime_error);
  member.queue.reset();

  DriveTokens other("break" + std::to_string(::getpid()), "drive", 4);
  unsigned taken = 0;
  while (other.take()) ++taken;
  EXPECT_EQ(taken, 4u);
}

}  // namespace
}  // namespace strata::nvme
