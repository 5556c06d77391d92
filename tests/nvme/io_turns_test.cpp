#include "nvme/io_turns.h"

#include <gtest/gtest.h>

#include <iostream>
#include <random>
#include <string>

#include "support/test_seed.h"

namespace strata::nvme {
namespace {

// The directions of `count` requests of one byte each while `waiting` stays as it is.
std::string sends(IoTurns& turns, const IoWaiting& waiting, int count) {
  std::string order;
  for (int i = 0; i < count; ++i) {
    const IoOp op = turns.next(waiting).value();
    turns.sent(op, 1);
    order += op == IoOp::Read ? 'r' : 'w';
  }
  return order;
}

TEST(IoTurns, HasNothingToSendWhenNothingWaits) {
  EXPECT_FALSE(IoTurns(0).next({}));
  EXPECT_FALSE(IoTurns(5).next({}));
}

TEST(IoTurns, LetsOneOfEightBeAWriteWithoutBursts) {
  IoTurns turns(0);
  EXPECT_EQ(sends(turns, {.demand = true, .write = true}, 16), "rrrrrrrwrrrrrrrw");
}

TEST(IoTurns, TakesTurnsOfABurst) {
  IoTurns turns(3);
  EXPECT_EQ(sends(turns, {.prefetch = true, .write = true}, 12), "rrrwwwrrrwww");
}

TEST(IoTurns, EndsATurnWhenNothingOfItWaits) {
  IoTurns turns(4);
  EXPECT_EQ(sends(turns, {.prefetch = true, .write = true}, 5), "rrrrw");
  EXPECT_EQ(sends(turns, {.prefetch = true}, 2), "rr");
  EXPECT_EQ(sends(turns, {.prefetch = true, .write = true}, 3), "rrw");
}

TEST(IoTurns, LetsADemandReadEndATurnOfWrites) {
  IoTurns turns(4);
  EXPECT_EQ(sends(turns, {.prefetch = true, .write = true}, 5), "rrrrw");
  EXPECT_EQ(sends(turns, {.demand = true, .write = true}, 1), "r");
}

TEST(IoTurns, SendsAWriteBetweenBurstsOfEndlessDemandReads) {
  IoTurns turns(4);
  EXPECT_EQ(sends(turns, {.demand = true, .write = true}, 10), "rrrrwrrrrw");
}

TEST(IoTurns, SwitchesAtOnceWhenALongTurnFoundNobodyElse) {
  IoTurns turns(2);
  EXPECT_EQ(sends(turns, {.prefetch = true}, 7), "rrrrrrr");
  EXPECT_EQ(sends(turns, {.prefetch = true, .write = true}, 1), "w");
}

// Whatever waits beside it, a direction that waits is sent after at most one turn of the other: kFairShare requests, or
// a burst and the request that exceeds it.
TEST(IoTurns, StarvesNeitherDirection) {
  constexpr std::uint64_t kMostBytes = 10;
  const std::uint64_t first = test::test_seed(5);
  std::cout << "first seed " << first << '\n';
  for (std::uint64_t seed = first; seed < first + 200; ++seed) {
    SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const std::uint64_t burst = random() % 4 == 0 ? 0 : 1 + random() % 50;
    const std::uint64_t most = burst == 0 ? IoTurns::kFairShare * kMostBytes : burst + kMostBytes;
    IoTurns turns(burst);
    std::uint64_t read_waits = 0;  // bytes that overtook a waiting read
    std::uint64_t write_waits = 0;
    for (int i = 0; i < 500; ++i) {
      const IoWaiting waiting{random() % 2 == 0, random() % 2 == 0, random() % 4 != 0};
      const std::optional<IoOp> op = turns.next(waiting);
      const bool read = waiting.demand || waiting.prefetch;
      ASSERT_EQ(op.has_value(), read || waiting.write);
      if (!op) continue;
      ASSERT_TRUE(*op == IoOp::Read ? read : waiting.write) << "sends what does not wait";
      const std::uint64_t bytes = 1 + random() % kMostBytes;
      turns.sent(*op, bytes);
      read_waits = read && *op == IoOp::Write ? read_waits + bytes : 0;
      write_waits = waiting.write && *op == IoOp::Read ? write_waits + bytes : 0;
      ASSERT_LE(read_waits, most);
      ASSERT_LE(write_waits, most);
    }
  }
}

}  // namespace
}  // namespace strata::nvme
