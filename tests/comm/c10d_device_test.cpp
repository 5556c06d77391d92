// The communicator over a back-end whose transfers a device runs, here a fake of NCCL's.
#include <gmock/gmock.h>

#include <condition_variable>
#include <mutex>
#include <set>

#include "comm/connection_lost.h"
#include "comm/device_ranks.h"
#include "contract/communicator_contract.h"
#include "core/host_device.h"
#include "support/comm_failure.h"

namespace strata::test {
namespace {

using std::chrono_literals::operator""ms;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// The fake lives as long as the back-ends: the suite keeps only those.
std::vector<std::shared_ptr<Communicator>> contract_ranks(std::size_t world) {
  struct Held {
    DeviceRanks ranks;
    std::vector<std::shared_ptr<Communicator>> comms;
    ~Held() {
      comms.clear();
      EXPECT_THAT(ranks.nccl->violations(), IsEmpty());
    }
  };
  const auto held = std::make_shared<Held>(Held{DeviceRanks(world), {}});
  held->comms = held->ranks.make();
  std::vector<std::shared_ptr<Communicator>> comms;
  for (const auto& comm : held->comms) comms.emplace_back(held, comm.get());
  return comms;
}

CommunicatorCase on_device() {
  return {.name = "Device",
          .make = contract_ranks,
          .device =
              [](std::size_t rank) {
                return std::make_unique<HostDevice>(
                    64 << 20, HostDeviceOptions{.mode = HostDeviceOptions::Mode::Adversarial, .seed = rank});
              },
          .on_device = true};
}

INSTANTIATE_TEST_SUITE_P(Device, CommunicatorContract, ::testing::Values(on_device()), communicator_case_name);

// Queues an all_gather of four floats on every rank and waits for it. What each rank's stream says of it.
std::vector<std::string> gather_on(const std::vector<std::shared_ptr<Communicator>>& ranks) {
  std::vector<std::string> said(ranks.size());
  run_ranks(ranks.size(), [&](std::size_t r) {
    HostDevice device(1 << 20);
    const auto stream = device.create_stream("comm");
    std::vector<float> values(4);
    ranks[r]->all_gather(*stream, {reinterpret_cast<std::byte*>(values.data()), DType::F32, values.size()});
    said[r] = text_of(stream->record().wait_noexcept());
  });
  return said;
}

TEST(DeviceGroup, EveryCallThatBlocksTellsOfACollectiveThatWasLate) {
  const Watchdog watchdog("a late collective");
  using Call = std::function<void(Communicator&)>;
  std::vector<double> values(2);
  std::vector<std::byte> bytes(8);
  const std::vector<Call> calls = {
      [](Communicator& comm) { comm.barrier(); }, [&](Communicator& comm) { comm.all_gather_values(values); },
      [&](Communicator& comm) { comm.all_reduce_sum(values); }, [&](Communicator& comm) { comm.broadcast(bytes, 0); }};
  for (const Call& call : calls) {
    DeviceRanks job(2, 300ms);
    const auto ranks = job.make();
    job.nccl->fail("all", 0, 1, FakeNccl::Failure::TimeOut);

    EXPECT_EQ(gather_on(ranks)[0], "success") << "the stream goes on with wrong bytes";
    const std::string text = failure_of([&] { call(*ranks[0]); });

    EXPECT_EQ(
        text,
        "a collective on the GPU of rank 10 (all_gather of 16 bytes, or one before it) has not ended within 0.3 s "
        "(collective_timeout): a rank is stopped, busy, or at another collective");
    EXPECT_EQ(failure_of([&] { ranks[0]->barrier(); }), text) << "and from then on";
    EXPECT_EQ(gather_on({ranks[0]})[0], text) << "also in the stream";
    job.devices(0).wait_for_aborts();
    EXPECT_EQ(job.nccl->count("all", 0, "abort"), 1U);
    EXPECT_THAT(job.nccl->violations(), IsEmpty());
  }
}

TEST(DeviceGroup, ALostConnectionIsWorthWaitingForItsReason) {
  const Watchdog watchdog("a lost connection");
  DeviceRanks job(2, 300ms);
  const auto ranks = job.make();
  job.nccl->fail("all", 1, 1, FakeNccl::Failure::LostConnection);
  gather_on(ranks);

  EXPECT_THROW(ranks[1]->barrier(), comm::ConnectionLost);
}

TEST(DeviceGroup, ACallThatBlocksAsksAllGroupsOfTheJob) {
  const Watchdog watchdog("another group's failure");
  DeviceRanks job(2, 300ms);
  const auto all = job.make("all");
  const auto node = job.make("node");
  job.nccl->fail("node", 1, 1, FakeNccl::Failure::TimeOut);
  gather_on(node);

  EXPECT_THAT(failure_of([&] { all[1]->barrier(); }), HasSubstr("on the GPU of rank 11"));
}

TEST(DeviceGroup, WhatCannotBeQueuedFailsInTheStreamByName) {
  const Watchdog watchdog("a call that throws");
  DeviceRanks job(2, 300ms);
  const auto ranks = job.make();
  job.nccl->fail("all", 0, 1, FakeNccl::Failure::ThrowsInTheCall);

  const std::vector<std::string> said = gather_on(ranks);

  EXPECT_EQ(said[0], "all_gather of 16 bytes: NCCL says no");
  EXPECT_EQ(said[1], "success") << "late, and quietly so";
  EXPECT_THAT(failure_of([&] { ranks[1]->barrier(); }), StartsWith("a collective on the GPU of rank 11"));
}

TEST(DeviceGroup, ATransferThatIsRefusedLeavesNoGroupOpen) {
  const Watchdog watchdog("a send that throws");
  DeviceRanks job(2, 300ms);
  const auto ranks = job.make();
  job.nccl->fail("all", 0, 1, FakeNccl::Failure::ThrowsInsideTheGroup);
  HostDevice device(1 << 20);
  const auto stream = device.create_stream("comm");
  std::vector<float> values(4);

  ranks[0]->all_to_all(*stream, {reinterpret_cast<std::byte*>(values.data()), DType::F32, values.size()});

  EXPECT_EQ(text_of(stream->record().wait_noexcept()), "all_to_all of 16 bytes: NCCL says no");
  job.devices(0).wait_for_aborts();
  EXPECT_THAT(job.nccl->violations(), IsEmpty());
}

TEST(DeviceGroup, IsShutDownOnceAtAGoodEnd) {
  const Watchdog watchdog("a good end");
  DeviceRanks job(2);
  {
    const auto ranks = job.make();
    gather_on(ranks);
    run_ranks(2, [&](std::size_t r) {
      job.devices(r).shut_down();
      job.devices(r).shut_down();
      job.devices(r).abort(std::make_exception_ptr(CommError("too late")));
      ranks[r]->barrier();
    });
  }
  for (const int rank : {0, 1})
    EXPECT_THAT(job.nccl->events("all", rank), ElementsAre("connect", "all_gather", "shutdown"));
  EXPECT_THAT(job.nccl->violations(), IsEmpty());
}

// In turns they would not end where the abort of one waits for a kernel of another.
TEST(DeviceGroup, AllOfAJobAreAbortedAtOnceAndNobodyWaitsForThat) {
  const Watchdog watchdog("aborts that wait for each other");
  DeviceRanks job(2);
  const auto all = job.make("all");
  const auto node = job.make("node");
  std::mutex mutex;
  std::condition_variable changed;
  bool may_end = false;
  std::set<std::string> aborting;
  job.nccl->on_abort([&](const std::string& group) {
    std::unique_lock lock(mutex);
    aborting.insert(group);
    changed.notify_all();
    changed.wait(lock, [&] { return aborting.size() == 2 && may_end; });
  });

  all[0]->abort(std::make_exception_ptr(CommError("rank 1 is lost")));

  EXPECT_EQ(failure_of([&] { node[0]->barrier(); }), "rank 1 is lost") << "before any group has ended";
  EXPECT_EQ(gather_on({node[0]})[0], "rank 1 is lost");
  {
    const std::lock_guard lock(mutex);
    may_end = true;
    changed.notify_all();
  }
  job.devices(0).wait_for_aborts();
  EXPECT_EQ(job.nccl->count("node", 0, "abort"), 1U);
  job.nccl->on_abort({});
}

TEST(DeviceGroup, IsNotShutDownAfterAnAbort) {
  DeviceRanks job(1);
  const auto ranks = job.make();
  ranks[0]->abort(std::make_exception_ptr(CommError("lost")));
  job.devices(0).shut_down();
  job.devices(0).wait_for_aborts();
  EXPECT_THAT(job.nccl->events("all", 0), ElementsAre("connect", "abort"));
}

}  // namespace
}  // namespace strata::test
