#include "comm/failure_record.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>

#include "comm/store_server.h"
#include "core/error.h"
#include "support/watchdog.h"

namespace strata::test {
namespace {

using comm::FailureRecord;
using comm::JobFailure;
using comm::RankWatch;
using std::chrono_literals::operator""ms;

class FailureRecords : public ::testing::Test {
 protected:
  comm::StoreAddress address(const std::string& prefix = "job") const {
    return {.port = server_->port(), .prefix = prefix, .server = "the launcher"};
  }
  std::unique_ptr<RankWatch> watch(std::size_t rank) const {
    return std::make_unique<RankWatch>(address(), rank, 2, comm::WatchOptions{.heartbeat_interval = 50ms});
  }

  const Watchdog watchdog_{"failure records"};
  std::unique_ptr<comm::StoreServer> server_ = std::make_unique<comm::StoreServer>("127.0.0.1");
};

TEST_F(FailureRecords, AreEmptyWhileNothingHasFailed) {
  FailureRecord record(address());
  EXPECT_FALSE(record.first().has_value()) << "no rank has come yet";
  const auto rank = watch(0);
  rank->leave();
  EXPECT_FALSE(record.first().has_value());
}

TEST_F(FailureRecords, HoldWhatARankHasReported) {
  FailureRecord record(address());
  const auto a = watch(0), b = watch(1);
  b->report_failure("no space left on the drive", 5);

  const auto failure = record.first();

  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->exit_code, 5);
  EXPECT_EQ(failure->reason, "rank 1 failed first: no space left on the drive");
}

TEST_F(FailureRecords, LetRanksHearOfOneThatCouldSayNothing) {
  FailureRecord record(address());
  const auto rank = watch(0);
  std::promise<std::string> heard;
  rank->on_lost([&](const std::string& reason) { heard.set_value(reason); });

  record.report({6, "rank 1 failed first: was killed by signal 9"});

  EXPECT_EQ(heard.get_future().get(), "rank 1 failed first: was killed by signal 9");
  EXPECT_EQ(rank->first_exit_code(), 6);
}

TEST_F(FailureRecords, KeepTheFirstOfTwo) {
  FailureRecord record(address());
  record.report({4, "first"});
  record.report({5, "second"});
  EXPECT_EQ(record.first()->exit_code, 4);
  EXPECT_EQ(record.first()->reason, "first");
}

TEST_F(FailureRecords, OfAnotherStartAreNotSeen) {
  FailureRecord(address("start 0")).report({4, "first"});
  EXPECT_FALSE(FailureRecord(address("start 1")).first().has_value());
}

TEST_F(FailureRecords, AreSilentOnceTheStoreIsGone) {
  FailureRecord record(address());
  record.report({4, "first"});
  server_.reset();
  EXPECT_FALSE(record.first().has_value());
  record.report({5, "second"});
}

}  // namespace
}  // namespace strata::test
