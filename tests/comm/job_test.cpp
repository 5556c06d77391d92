#include "comm/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <future>
#include <optional>
#include <thread>

#include "comm/endpoint.h"
#include "comm/failure_record.h"
#include "comm/store_server.h"
#include "core/error.h"
#include "core/host_device.h"
#include "support/comm_failure.h"
#include "support/free_port.h"
#include "support/plain_math.h"
#include "support/run_ranks.h"
#include "support/watchdog.h"

namespace strata::test {
namespace {

using comm::Job;
using comm::RankInfo;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using ::testing::HasSubstr;

RankInfo rank_of(std::size_t rank, std::size_t world, std::uint16_t port) {
  RankInfo info;
  info.rank = info.local_rank = rank;
  info.world = info.local_world = world;
  info.master_port = port;
  return info;
}

class Jobs : public ::testing::Test {
 protected:
  Buffer staging(std::size_t ranks) {
    return allocate_host(budget_, comm::communicator_staging_bytes(ranks), MemoryTag::Staging);
  }

  const Watchdog watchdog_{"a job"};
  PlainMath math_;
  Budget budget_{"staging", 1 << 30};
};

TEST_F(Jobs, OneRankNeedsNoStore) {
  const auto job = Job::join({});
  const auto all = job->communicator(math_, staging(1));
  EXPECT_EQ(all->world(), 1U);
  EXPECT_EQ(job->watch(), nullptr);
}

// Hybrid sharding: rows and columns of a grid of ranks, in an order of their own.
TEST_F(Jobs, SubsetsOfTheRanksAreGroups) {
  const std::uint16_t port = free_port();
  run_ranks(4, [&](std::size_t r) {
    const auto job = Job::join(rank_of(r, 4, port));
    const std::size_t row = r / 2, column = r % 2;
    const auto all = job->communicator(math_, staging(4));
    const auto shard = job->communicator(math_, staging(2), "shard" + std::to_string(row), {2 * row + 1, 2 * row});
    const auto replicate =
        job->communicator(math_, staging(2), "replicate" + std::to_string(column), {column, column + 2});
    const auto alone = job->communicator(math_, staging(1), "alone" + std::to_string(r), {r});

    EXPECT_EQ(shard->rank(), 1 - column);
    EXPECT_EQ(replicate->rank(), row);
    EXPECT_EQ(alone->world(), 1U);
    const auto sum = [&](Communicator& among) {
      double value = static_cast<double>(r + 1);
      among.all_reduce_sum({&value, 1});
      return value;
    };
    EXPECT_EQ(sum(*all), 10.0);
    EXPECT_EQ(sum(*shard), row == 0 ? 3.0 : 7.0);
    EXPECT_EQ(sum(*replicate), column == 0 ? 4.0 : 6.0);
    job->watch()->leave();
  });
}

TEST_F(Jobs, TheLaunchersStoreServesOneJobAfterTheOther) {
  const comm::StoreServer server("127.0.0.1");
  for (const char* const prefix : {"attempt_0", "attempt_1"}) {
    run_ranks(2, [&](std::size_t r) {
      RankInfo info = rank_of(r, 2, server.port());
      info.agent_store = true;
      info.store_prefix = prefix;
      const auto job = Job::join(info);
      job->communicator(math_, staging(2))->barrier();
      job->watch()->leave();
    });
  }
}

TEST_F(Jobs, NotesAreThereOnceTheyArePublished) {
  const std::uint16_t port = free_port();
  std::promise<void> looked;
  run_ranks(2, [&](std::size_t r) {
    const auto job = Job::join(rank_of(r, 2, port));
    if (r == 0) {
      looked.get_future().wait();
      job->publish("a", "text\nof two lines");
    } else {
      EXPECT_EQ(job->look_up("a"), std::nullopt);
      looked.set_value();
      std::optional<std::string> text;
      while (!(text = job->look_up("a"))) std::this_thread::yield();
      EXPECT_EQ(*text, "text\nof two lines");
      EXPECT_EQ(job->look_up("b"), std::nullopt);
    }
    job->watch()->leave();
  });
}

TEST_F(Jobs, AbortEndsTheCollectivesOfAllCommunicators) {
  const std::uint16_t port = free_port();
  run_ranks(2, [&](std::size_t r) {
    const auto job = Job::join(rank_of(r, 2, port));
    const auto all = job->communicator(math_, staging(2));
    if (r == 0) {
      std::jthread other([&] { job->abort(std::make_exception_ptr(CommError("stop"))); });
      EXPECT_EQ(failure_of([&] { all->barrier(); }), "stop");
    }
    job->watch()->leave();
  });
}

TEST_F(Jobs, APortInUseIsSaidWithItsSettings) {
  const comm::Listener taken = comm::listen_on("127.0.0.1", 0);
  const std::string text = failure_of([&] { Job::join(rank_of(0, 2, taken.port)); });
  EXPECT_THAT(text, HasSubstr("MASTER_ADDR=127.0.0.1, MASTER_PORT=" + std::to_string(taken.port)));
  EXPECT_THAT(text, HasSubstr("another MASTER_PORT"));
  ::close(taken.fd);
  EXPECT_THAT(failure_of([] { Job::join(rank_of(0, 2, 0)); }), HasSubstr("MASTER_PORT is not set"));
}

TEST_F(Jobs, AMasterThatIsNotThereIsSaid) {
  RankInfo info = rank_of(1, 2, free_port());
  EXPECT_THAT(failure_of([&] { Job::join(info, {.join_timeout = 300ms}); }), HasSubstr("nobody serves this job"));
  info.master_addr = "no such host";
  EXPECT_THAT(failure_of([&] { Job::join(info); }), HasSubstr("MASTER_ADDR=no such host"));
}

TEST_F(Jobs, AWrongInterfaceIsSaid) {
  const std::string text = failure_of([] { Job::join(rank_of(0, 2, free_port()), {.interface = "eth99"}); });
  EXPECT_THAT(text, HasSubstr("strata.comm.interface=eth99"));
  EXPECT_THAT(text, HasSubstr("lo"));
}

TEST_F(Jobs, TheInterfaceThatIsNamedIsUsed) {
  const std::uint16_t port = free_port();
  run_ranks(2, [&](std::size_t r) {
    const auto job = Job::join(rank_of(r, 2, port), {.interface = "lo"});
    job->communicator(math_, staging(2))->barrier();
    job->watch()->leave();
  });
}

TEST_F(Jobs, RanksThatHaveNotComeAreNamed) {
  const std::uint16_t port = free_port();
  run_ranks(2, [&](std::size_t r) {
    const std::string text =
        failure_of([&] { Job::join(rank_of(r == 0 ? 0 : 2, 5, port), {.join_timeout = r == 0 ? 2000ms : 1000ms}); });
    EXPECT_THAT(text, HasSubstr("these of 5 ranks have not come"));
    EXPECT_THAT(text, HasSubstr("s: 1, 3, 4."));
  });
}

TEST_F(Jobs, ALauncherLearnsWhichRanksHaveNotCome) {
  const comm::StoreServer server("127.0.0.1");
  RankInfo info = rank_of(1, 3, server.port());
  info.agent_store = true;
  failure_of([&] { Job::join(info, {.join_timeout = 200ms}); });
  comm::FailureRecord record({.host = "127.0.0.1", .port = server.port(), .prefix = info.store_prefix});
  const auto failure = record.first();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->exit_code, 6);
  EXPECT_THAT(failure->reason, HasSubstr("rank 1 failed first: these of 3 ranks have not come"));
  EXPECT_THAT(failure->reason, HasSubstr("s: 0, 2."));
}

// The watch's thread then found a mutex that was gone.
TEST_F(Jobs, EndsWhileItsWatchAborts) {
  const std::uint16_t port = free_port();
  run_ranks(2, [&](std::size_t r) {
    auto job = Job::join(rank_of(r, 2, port));
    const auto communicator = job->communicator(math_, staging(2));
    if (r == 1) {
      job->report_failure(CommError("on purpose"), 6);
      return;
    }
    std::promise<void> heard;
    job->watch()->on_lost([&heard, job = job.get()](const std::string&) {
      heard.set_value();
      std::this_thread::sleep_for(50ms);  // until it is being destroyed
      job->abort(std::make_exception_ptr(CommError("lost")));
    });
    heard.get_future().wait();
    job.reset();
    EXPECT_THROW(communicator->barrier(), CommError) << "aborted";
  });
}

TEST_F(Jobs, TwoProcessesOfOneRankAreNamed) {
  const comm::StoreServer server("127.0.0.1");
  RankInfo info = rank_of(1, 2, server.port());
  info.agent_store = true;
  const std::string first = failure_of([&] { Job::join(info, {.join_timeout = 200ms}); });
  EXPECT_THAT(first, HasSubstr("have not come"));

  const std::string text = failure_of([&] { Job::join(info, {.join_timeout = 200ms}); });

  EXPECT_THAT(text, HasSubstr("two processes are rank 1 of 2: process " + std::to_string(getpid())));
}

TEST_F(Jobs, RanksOfDifferentWorldsAreNamed) {
  const comm::StoreServer server("127.0.0.1");
  RankInfo info = rank_of(0, 3, server.port());
  info.agent_store = true;
  failure_of([&] { Job::join(info, {.join_timeout = 100ms}); });
  info.rank = 1;
  info.world = 2;

  EXPECT_THAT(failure_of([&] { Job::join(info, {.join_timeout = 5s}); }),
              HasSubstr("rank 0 was started as one of 3 ranks, rank 1 as one of 2"));
}

}  // namespace
}  // namespace strata::test
