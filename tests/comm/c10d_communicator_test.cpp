#include "comm/c10d_communicator.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/gloo_backend.h"
#include "contract/communicator_contract.h"
#include "core/host_device.h"
#include "support/comm_failure.h"

namespace strata::test {
namespace {

using std::chrono_literals::operator""ms;

// Ranks of one process, connected through the loopback interface.
std::vector<std::shared_ptr<Communicator>> gloo_ranks(std::size_t world, std::chrono::milliseconds timeout) {
  static PlainMath math;
  static Budget budget("staging", std::uint64_t{1} << 30);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::shared_ptr<Communicator>> ranks(world);
  run_ranks(world, [&](std::size_t r) {
    const auto group = [&](const char* name) {
      return comm::make_gloo_backend(c10::make_intrusive<c10d::PrefixStore>(name, store), r, world,
                                     {.timeout = 60000ms});
    };
    comm::C10dGroups groups{.queued = group("queued"), .blocking = group("blocking"), .timeout = timeout};
    for (std::size_t i = 0; i < world; ++i) groups.ranks.push_back(10 + i);
    ranks[r] = comm::make_c10d_communicator(std::move(groups), math,
                                            allocate_host(budget, comm::kStagingBytes, MemoryTag::Staging));
  });
  return ranks;
}

CommunicatorCase gloo() {
  return {.name = "Gloo",
          .make = [](std::size_t world) { return gloo_ranks(world, 120000ms); },
          .device =
              [](std::size_t rank) {
                return std::make_unique<HostDevice>(
                    64 << 20, HostDeviceOptions{.mode = HostDeviceOptions::Mode::Adversarial, .seed = rank});
              }};
}

INSTANTIATE_TEST_SUITE_P(Gloo, CommunicatorContract, ::testing::Values(gloo()), communicator_case_name);

TEST(C10dCommunicator, ATimeOutNamesTheCollectiveThePeerAndTheSetting) {
  const Watchdog watchdog("a time-out");
  const auto ranks = gloo_ranks(2, 300ms);

  const std::string text = failure_of([&] { ranks[0]->barrier(); });

  EXPECT_EQ(
      text,
      "barrier of 0 bytes: rank 11 has not answered rank 10 for 0.3 s (collective_timeout): it is stopped, busy, or "
      "at another collective");
  HostDevice device(1 << 20);
  const auto stream = device.create_stream("comm");
  ranks[0]->all_gather(*stream, {nullptr, DType::F32, 0});
  EXPECT_EQ(text_of(stream->record().wait_noexcept()), text) << "one channel's failure fails the other";
}

TEST(C10dCommunicator, RanksAtDifferentCollectivesTimeOut) {
  const Watchdog watchdog("different collectives");
  const auto ranks = gloo_ranks(2, 500ms);

  run_ranks(2, [&](std::size_t r) {
    std::vector<double> values(r == 0 ? 2 : 200);
    EXPECT_NE(failure_of([&] { ranks[r]->all_gather_values(values); }), "no CommError");
  });
}

TEST(C10dCommunicator, APeerThatEndsIsNamed) {
  const Watchdog watchdog("a lost peer");
  auto ranks = gloo_ranks(3, 60000ms);
  ranks[1].reset();

  run_ranks(3, [&](std::size_t r) {
    if (r == 1) return;
    std::vector<std::byte> bytes(100);
    const std::string text = failure_of([&] { ranks[r]->broadcast(bytes, 1); });
    if (r == 0) {
      EXPECT_TRUE(text.starts_with("broadcast of 100 bytes: rank 10 lost its connection to rank 11, which has ended"))
          << text;
    }
  });
}

}  // namespace
}  // namespace strata::test
