#include "comm/rank_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <vector>

#include "comm/store_server.h"
#include "support/run_ranks.h"
#include "support/watchdog.h"

namespace strata::test {
namespace {

using comm::RankWatch;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class RankWatches : public ::testing::Test {
 protected:
  std::unique_ptr<RankWatch> watch(std::size_t rank, std::size_t world, std::chrono::milliseconds lost_after = 60s) {
    return std::make_unique<RankWatch>(
        comm::StoreAddress{.port = server_->port(), .prefix = "job", .server = "the launcher"}, rank, world,
        comm::WatchOptions{.heartbeat_interval = 50ms, .lost_after = lost_after});
  }
  // What on_lost of `watch` will be given.
  static std::future<std::string> lost(RankWatch& watch) {
    auto promise = std::make_shared<std::promise<std::string>>();
    watch.on_lost([promise](const std::string& reason) { promise->set_value(reason); });
    return promise->get_future();
  }

  const Watchdog watchdog_{"rank watches"};
  std::unique_ptr<comm::StoreServer> server_ = std::make_unique<comm::StoreServer>("127.0.0.1");
};

TEST_F(RankWatches, TheFirstFailureIsEverybodysReason) {
  const auto a = watch(0, 3), b = watch(1, 3), c = watch(2, 3);
  auto at_a = lost(*a), at_c = lost(*c);

  EXPECT_EQ(b->report_failure("no space left", 5), "rank 1 failed first: no space left");

  EXPECT_EQ(at_a.get(), "rank 1 failed first: no space left");
  EXPECT_EQ(at_c.get(), "rank 1 failed first: no space left");
  EXPECT_EQ(a->report_failure("rank 1 does not answer", 6), "rank 1 failed first: no space left");
  EXPECT_EQ(c->first_failure(0ms), "rank 1 failed first: no space left");
  EXPECT_EQ(c->first_exit_code(), 5);
}

TEST_F(RankWatches, OfFailuresAtTheSameTimeOneWins) {
  std::vector<std::unique_ptr<RankWatch>> watches;
  for (std::size_t r = 0; r < 4; ++r) watches.push_back(watch(r, 4));
  std::vector<std::string> reasons(4);

  run_ranks(4, [&](std::size_t r) { reasons[r] = watches[r]->report_failure("own reason", 6); });

  EXPECT_THAT(reasons[0], HasSubstr("failed first: own reason"));
  EXPECT_EQ(reasons, std::vector<std::string>(4, reasons[0]));
}

TEST_F(RankWatches, AFailureIsWaitedForAndSomeoneElsesIsNot) {
  const auto a = watch(0, 2), b = watch(1, 2);

  EXPECT_EQ(a->first_failure(20ms), std::nullopt);
  EXPECT_EQ(a->first_exit_code(), std::nullopt);
  std::jthread later([&] { b->report_failure("late", 6); });
  EXPECT_EQ(a->first_failure(60s), "rank 1 failed first: late");
}

TEST_F(RankWatches, OnLostIsCalledAtOnceWhereTheFailureIsKnown) {
  const auto a = watch(0, 2), b = watch(1, 2);
  b->report_failure("early", 6);
  ASSERT_TRUE(a->first_failure(60s));

  EXPECT_EQ(lost(*a).get(), "rank 1 failed first: early");
}

TEST_F(RankWatches, ARankThatNeverBeatsIsLost) {
  const auto a = watch(0, 3, 1s), b = watch(1, 3, 1s);
  auto at_a = lost(*a), at_b = lost(*b);

  EXPECT_EQ(at_a.get(), "rank 2 has not answered for 1 s (stopped, or its machine is gone)");
  EXPECT_EQ(at_b.get(), "rank 2 has not answered for 1 s (stopped, or its machine is gone)");
}

TEST_F(RankWatches, ARankThatHasLeftMayBeSilent) {
  auto a = watch(0, 2, 1s);
  auto b = watch(1, 2, 1s);
  b->leave();
  b.reset();

  // A second and a half of what would be silence.
  EXPECT_EQ(a->first_failure(1500ms), std::nullopt);
  a->leave();
}

TEST_F(RankWatches, ARankThatEndsWithoutLeavingFails) {
  const auto a = watch(0, 2);
  watch(1, 2).reset();

  EXPECT_EQ(a->first_failure(60s), "rank 1 ended early");
}

TEST_F(RankWatches, AStoreThatIsGoneIsAFailure) {
  const auto a = watch(0, 2), b = watch(1, 2);
  ASSERT_EQ(a->first_failure(200ms), std::nullopt);
  auto at_a = lost(*a);
  server_.reset();

  EXPECT_THAT(at_a.get(), StartsWith("the launcher, which serves the job's store at 127.0.0.1:"));
  EXPECT_THAT(b->report_failure("own reason", 6), ::testing::AnyOf(HasSubstr("own reason"), HasSubstr("has ended")));
}

// A program whose rank 0 serves the store and is done first.
TEST_F(RankWatches, WhoServesTheStoreLeavesLast) {
  const comm::StoreAddress mine{.port = server_->port(), .prefix = "job", .serves = true};
  RankWatch a(mine, 0, 2, {.heartbeat_interval = 50ms, .lost_after = 60s});
  auto b = watch(1, 2);
  std::atomic<bool> b_leaves = false;
  std::jthread other([&] {
    EXPECT_EQ(b->first_failure(300ms), std::nullopt);
    b_leaves = true;
    b->leave();
  });

  a.leave();

  EXPECT_TRUE(b_leaves);
}

}  // namespace
}  // namespace strata::test
