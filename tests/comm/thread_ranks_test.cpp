#include "comm/thread_ranks.h"

#include "contract/communicator_contract.h"
#include "core/host_device.h"

namespace strata::test {
namespace {

CommunicatorCase thread_ranks() {
  return {.name = "ThreadRanks",
          .make =
              [](std::size_t world) {
                static PlainMath math;
                std::vector<std::shared_ptr<Communicator>> shared;
                for (auto& rank : comm::make_thread_ranks(world, math)) shared.push_back(std::move(rank));
                return shared;
              },
          .device =
              [](std::size_t rank) {
                return std::make_unique<HostDevice>(
                    64 << 20, HostDeviceOptions{.mode = HostDeviceOptions::Mode::Adversarial, .seed = rank});
              }};
}

INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorContract, ::testing::Values(thread_ranks()), communicator_case_name);

TEST(ThreadRanks, DifferentCollectivesFailOnAllRanks) {
  PlainMath math;
  const auto ranks = comm::make_thread_ranks(3, math);

  run_ranks(3, [&](std::size_t r) {
    std::vector<double> values(r == 2 ? 6 : 3);
    try {
      ranks[r]->all_gather_values(values);
      ADD_FAILURE() << "rank " << r << " went on";
    } catch (const CommError& e) {
      EXPECT_STREQ(
          e.what(),
          "ranks disagree: rank 0 is at all_gather_values of 24 bytes, rank 2 at all_gather_values of 48 bytes");
    }
  });
}

// The memory of a rank that is told of an abort inside a collective may be freed at once; others must not be reading
// it.
TEST(ThreadRanks, AnAbortWaitsForThoseWhoRead) {
  const Watchdog watchdog("aborted ranks");
  PlainMath math;
  for (int i = 0; i < 50; ++i) {
    const auto ranks = comm::make_thread_ranks(3, math);
    std::atomic<int> gathered = 0;
    run_ranks(4, [&](std::size_t r) {
      if (r == 3) {
        while (gathered < i * 3) std::this_thread::yield();
        ranks[0]->abort(std::make_exception_ptr(CommError("stop")));
        return;
      }
      try {
        for (;;) {
          auto values = std::make_unique<std::vector<double>>(3 * 4096);
          ranks[r]->all_gather_values(*values);
          ++gathered;
        }
      } catch (const CommError& e) {
        EXPECT_STREQ(e.what(), "stop");
      }
    });
  }
}

}  // namespace
}  // namespace strata::test
