// Collectives run beside compute: every layer refuses to end until those that may overlap with it have ended, so that a
// step which serializes them would never end. No clock decides.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "comm/forwarding_communicator.h"
#include "comm/thread_ranks.h"
#include "support/toy_engine.h"
#include "support/watchdog.h"

namespace strata::zero {
namespace {

using test::ToyEngine;
using test::ToyOptions;

// Counts the collectives that have ended.
class CountedCollectives final : public comm::ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  void all_gather(Stream& stream, TensorSpan full) override {
    ForwardingCommunicator::all_gather(stream, full);
    stream.launch([this] { count(gathers_); });
  }
  void reduce_scatter(Stream& stream, TensorSpan full) override {
    ForwardingCommunicator::reduce_scatter(stream, full);
    stream.launch([this] { count(reductions_); });
  }
  // Returns once so many have ended. Throws: after a minute, which nothing that overlaps takes.
  void wait_for(std::size_t gathers, std::size_t reductions) {
    std::unique_lock lock(mutex_);
    const bool reached = changed_.wait_for(lock, std::chrono::minutes(1),
                                           [&] { return gathers_ >= gathers && reductions_ >= reductions; });
    if (!reached) throw CommError("a collective waits for a layer that should run beside it");
  }

 private:
  void count(std::size_t& counter) {
    const std::lock_guard lock(mutex_);
    ++counter;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t gathers_ = 0;
  std::size_t reductions_ = 0;
};

// One step on two ranks, each layer of which waits as `needed` says for (gathers, reductions) that have ended.
using Needed = std::function<std::pair<std::size_t, std::size_t>(Direction, std::size_t layer)>;
void run(HostDeviceOptions::Mode mode, const Needed& needed) {
  const test::Watchdog watchdog("overlap");
  test::PlainMath math;
  const auto ranks = comm::make_thread_ranks(2, math);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      CountedCollectives counted(*ranks[r]);
      ToyOptions options{.blocks = 4, .head = test::ToyCompute::Head::Own};
      options.comm = &counted;
      options.device.mode = mode;
      options.device.seed = r;
      try {
        ToyEngine engine(options);
        engine.compute.on_visit = [&](Direction direction, std::size_t layer) {
          const auto [gathers, reductions] = needed(direction, layer);
          counted.wait_for(gathers, reductions);
        };
        engine.step();
      } catch (const std::exception& error) {
        ranks[r]->abort(std::current_exception());
        ADD_FAILURE() << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class CommOverlap : public ::testing::TestWithParam<HostDeviceOptions::Mode> {};
INSTANTIATE_TEST_SUITE_P(Streams, CommOverlap,
                         ::testing::Values(HostDeviceOptions::Mode::Normal, HostDeviceOptions::Mode::Adversarial));

// Six layers, six gathers forward, the head's among them; its one visit is followed by the gathers of blocks 4 to 1, as
// the embedding's backward needs no weights.
TEST_P(CommOverlap, TheNextLayersAreGatheredWhileALayerRuns) {
  run(GetParam(), [](Direction direction, std::size_t layer) -> std::pair<std::size_t, std::size_t> {
    constexpr std::size_t kLayers = 6, kAll = 6 + 4;
    if (direction == Direction::Forward) return {std::min(layer + 2, kLayers), 0};
    return {std::min(kLayers + (kLayers - layer), kAll), 0};
  });
}

// While a layer's backward runs, the gradients of the one after it are summed over the ranks.
TEST_P(CommOverlap, GradientsAreReducedWhileTheLayerBeforeRuns) {
  run(GetParam(), [](Direction direction, std::size_t layer) -> std::pair<std::size_t, std::size_t> {
    constexpr std::size_t kLast = 5;
    if (direction == Direction::Forward || layer == kLast) return {0, 0};
    return {0, kLast - layer};
  });
}

}  // namespace
}  // namespace strata::zero
