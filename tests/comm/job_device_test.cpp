// A job whose communicators work on GPUs: how NCCL's groups begin and end, over the fake plug-in.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/fake_nccl.h"
#include "comm/job.h"
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
using std::chrono_literals::operator""ms;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DeviceJobs : public ::testing::Test {
 protected:
  DeviceJobs() : nccl_(*fake()) { nccl_.reset(); }

  static FakeNccl* fake() {
    void* const plugin = dlopen(STRATA_FAKE_NCCL_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<FakeNccl* (*)()>(dlsym(plugin, "strata_fake_nccl"))();
  }
  std::unique_ptr<Job> join(std::size_t rank, std::size_t world, std::chrono::milliseconds join_timeout = 60000ms) {
    comm::RankInfo info;
    info.rank = info.local_rank = rank;
    info.world = info.local_world = world;
    info.master_port = port_;
    return Job::join(info, {.join_timeout = join_timeout, .collective_timeout = 60000ms});
  }
  std::shared_ptr<Communicator> connect(Job& job, const std::string& pci_bus_id,
                                        const std::string& plugin = STRATA_FAKE_NCCL_PLUGIN) {
    return job.communicator(math_, allocate_host(budget_, comm::device_staging_bytes(job.world()), MemoryTag::Staging),
                            "all", {}, comm::NcclDevice{.plugin = plugin, .pci_bus_id = pci_bus_id});
  }
  static std::string gpu(std::size_t rank) { return "0000:0" + std::to_string(rank) + ":00.0"; }
  static void gather(Communicator& comm) {
    HostDevice device(1 << 20);
    const auto stream = device.create_stream("comm");
    std::vector<float> values(2 * comm.world(), static_cast<float>(comm.rank() + 1));
    comm.all_gather(*stream, {reinterpret_cast<std::byte*>(values.data()), DType::F32, values.size()});
    stream->record().wait();
  }

  const Watchdog watchdog_{"a job on GPUs"};
  const std::uint16_t port_ = free_port();
  PlainMath math_;
  Budget budget_{"staging", 1 << 30};
  FakeNccl& nccl_;
};

TEST_F(DeviceJobs, ConnectAtOnceAndShutDownAtTheEnd) {
  run_ranks(3, [&](std::size_t r) {
    const auto job = join(r, 3);
    {
      const auto all = connect(*job, gpu(r));
      EXPECT_EQ(nccl_.events(nccl_.only_group(), static_cast<int>(r)), std::vector<std::string>{"connect"});
      gather(*all);
    }
    job->shut_down();
    job->watch()->leave();
  });
  for (int r = 0; r < 3; ++r) {
    EXPECT_THAT(nccl_.events(nccl_.only_group(), r), ElementsAre("connect", "all_gather", "shutdown"));
  }
  EXPECT_THAT(nccl_.violations(), IsEmpty());
}

TEST_F(DeviceJobs, EndByForceWithoutAGoodEnd) {
  run_ranks(2, [&](std::size_t r) {
    const auto job = join(r, 2);
    connect(*job, gpu(r));
    job->watch()->leave();
  });
  EXPECT_THAT(nccl_.events(nccl_.only_group(), 0), ElementsAre("connect", "abort"));
}

TEST_F(DeviceJobs, AGoodEndNeedsSoundCollectivesAndNoAbort) {
  run_ranks(2, [&](std::size_t r) {
    const auto job = join(r, 2);
    const auto all = connect(*job, gpu(r));
    if (r == 0) {
      nccl_.fail(nccl_.only_group(), 0, 1, FakeNccl::Failure::LostConnection);
      gather(*all);
      EXPECT_THAT(failure_of([&] { job->shut_down(); }), HasSubstr("has failed: NCCL_DEBUG=WARN"));
    } else {
      job->abort(std::make_exception_ptr(CommError("told to stop")));
      EXPECT_EQ(failure_of([&] { job->shut_down(); }), "told to stop");
    }
    job->watch()->leave();
  });
  for (const int r : {0, 1}) EXPECT_EQ(nccl_.count(nccl_.only_group(), r, "shutdown"), 0U);
}

TEST_F(DeviceJobs, WhoDoesNotComeToTheEndIsNamed) {
  run_ranks(2, [&](std::size_t r) {
    const auto job = join(r, 2);
    const auto all = connect(*job, gpu(r));
    if (r == 1) {
      job->report_failure(CommError("the disk is full"), 4);
      return;
    }
    EXPECT_EQ(failure_of([&] { job->shut_down(); }), "rank 1 failed first: the disk is full");
  });
  EXPECT_THAT(nccl_.events(nccl_.only_group(), 0), ElementsAre("connect", "abort"));
}

// NCCL would wait for it without an end.
TEST_F(DeviceJobs, ARankThatCannotStartNcclIsNamedBeforeTheOthersDo) {
  run_ranks(3, [&](std::size_t r) {
    const auto job = join(r, 3, 4000ms);
    if (r == 1) {
      EXPECT_THAT(failure_of([&] { connect(*job, gpu(r), "no_such_plugin.so"); }), HasSubstr("no_such_plugin.so"));
    } else {
      EXPECT_THAT(failure_of([&] { connect(*job, gpu(r)); }),
                  HasSubstr("has waited 4 s for these ranks to start NCCL: 1."));
    }
    job->watch()->leave();
  });
  for (const int r : {0, 2}) EXPECT_EQ(nccl_.count(nccl_.only_group(), r, "connect"), 0U);
}

TEST_F(DeviceJobs, TwoRanksOfOneGpuAreNamed) {
  run_ranks(3, [&](std::size_t r) {
    const auto job = join(r, 3);
    EXPECT_THAT(failure_of([&] { connect(*job, gpu(r == 2 ? 0 : r)); }),
                HasSubstr("ranks 0 and 2 both use GPU 0000:00:00.0; give each rank its own"));
    job->watch()->leave();
  });
}

TEST_F(DeviceJobs, GpusThatAreUnknownAreTakenToDiffer) {
  run_ranks(2, [&](std::size_t r) {
    const auto job = join(r, 2);
    connect(*job, "")->barrier();
    job->shut_down();
    job->watch()->leave();
  });
}

TEST(Interface, IsAlsoNcclsUnlessTheUserHasNamedOne) {
  const auto join_through = [](const std::string& interface) {
    comm::RankInfo info;
    info.world = 2;
    return failure_of([&] { Job::join(info, {.interface = interface}); });  // no MASTER_PORT: it ends behind that
  };
  const auto join_through_lo = [&] { return join_through("lo"); };
  ::unsetenv("NCCL_SOCKET_IFNAME");
  EXPECT_THAT(join_through_lo(), HasSubstr("MASTER_PORT"));
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "=lo");
  ::setenv("NCCL_SOCKET_IFNAME", "eth", 1);
  join_through_lo();
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "eth");
  ::unsetenv("NCCL_SOCKET_IFNAME");
  ::setenv("GLOO_SOCKET_IFNAME", "lo", 1);
  join_through("");
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "=lo");
  ::unsetenv("GLOO_SOCKET_IFNAME");
  ::unsetenv("NCCL_SOCKET_IFNAME");
}

}  // namespace
}  // namespace strata::test
