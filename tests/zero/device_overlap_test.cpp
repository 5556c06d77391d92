// What runs beside what on a device, by the time of a simulated one: exact numbers, not measured.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "support/simulated_device.h"
#include "support/toy_engine.h"
#include "zero/device_updates.h"
#include "zero/update_parts.h"

namespace strata::zero {
namespace {

using offload::Access;
using test::SimulatedDevice;
using test::ToyCompute;
using test::ToyEngine;

constexpr std::uint64_t kDeviceBytes = std::uint64_t{64} << 20;

// Seconds that one chunk takes on its way in, in its update and on its way out.
struct ChunkCosts {
  double in, update, out;
  double sum() const { return in + update + out; }
  double longest() const { return std::max({in, update, out}); }
};

std::string text(const ChunkCosts& costs, std::size_t chunks) {
  return std::to_string(chunks) + " chunks, in " + std::to_string(costs.in) + ", update " +
         std::to_string(costs.update) + ", out " + std::to_string(costs.out);
}

class TimedAdam final : public ShardOptimizer {
 public:
  TimedAdam(SimulatedDevice& device, double seconds) : device_(device), seconds_(seconds) {}
  std::vector<StateSpec> states(DType param) const override { return adam_.states(param); }
  Event step(const StepContext& context, const ShardViews& views) override {
    device_.spend(seconds_);
    return adam_.step(context, views);
  }

 private:
  SimulatedDevice& device_;
  const double seconds_;
  test::PlainAdam adam_;
};

// Parameter, gradient and two states of a chunk, all in fp32.
constexpr std::size_t kParts = 4;
constexpr std::size_t kNumel = 720;  // so that the costs below divide the bytes, and times are exact
constexpr std::size_t kPartBytes = kNumel * sizeof(float);
using HostChunk = std::vector<float>;

HostChunk host_chunk(std::size_t index) {
  HostChunk values(kParts * kNumel);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((i * 7 + index * 11) % 23) / 16;
  return values;
}

std::vector<TensorSpan> parts_of(HostChunk& chunk) {
  const TensorSpan all{reinterpret_cast<std::byte*>(chunk.data()), DType::F32, chunk.size()};
  std::vector<TensorSpan> parts;
  for (std::size_t i = 0; i < kParts; ++i) parts.push_back(all.subspan(i * kNumel, kNumel));
  return parts;
}

// When `chunks` chunks that are at home in host memory have been updated on the device, with so many sets of staging.
double seconds_of_updates(std::size_t sets, std::size_t chunks, const ChunkCosts& costs) {
  SimulatedDevice device(kDeviceBytes, {.to_device = 4 * kPartBytes / costs.in, .to_host = 3 * kPartBytes / costs.out});
  std::vector<Buffer> staging;
  for (std::size_t i = 0; i < sets; ++i) staging.push_back(device.allocate(kParts * kPageBytes, MemoryTag::Staging));
  std::vector<HostChunk> values;
  for (std::size_t i = 0; i < chunks; ++i) values.push_back(host_chunk(i));
  const StepContext context = test::toy_step(1);
  const Segment segment{"w", {kNumel}, 0, kNumel};
  {
    TimedAdam adam(device, costs.update);
    LinkCounters counters;
    BusyTimes busy;
    const auto in = device.create_stream("in");
    const auto update = device.create_stream("update");
    const auto out = device.create_stream("out");
    DeviceUpdates updates(adam, staging, {*in, *update, *out}, counters, busy);
    Event last;
    for (HostChunk& chunk : values) {
      const std::vector<TensorSpan> parts = parts_of(chunk);
      last = updates.start({.context = context,
                            .parts = {{parts[0]}, {parts[1], Access::Read}, {parts[2]}, {parts[3]}},
                            .segments = {segment}});
    }
    last.wait();
  }
  test::PlainAdam adam;
  for (std::size_t i = 0; i < chunks; ++i) {
    HostChunk expected = host_chunk(i);
    const std::vector<TensorSpan> parts = parts_of(expected);
    adam.step(context, {parts[0], parts[1], std::span(parts).subspan(2), {&segment, 1}}).wait();
    EXPECT_TRUE(values[i] == expected) << "chunk " << i;
  }
  return device.seconds();
}

template <typename Check>
void for_all_costs(Check&& check) {
  for (const std::size_t chunks : {1, 2, 3, 8, 9}) {
    for (const double in : {1, 4, 12}) {
      for (const double update : {1, 6, 30}) {
        for (const double out : {3, 9}) {
          const ChunkCosts costs{in, update, out};
          SCOPED_TRACE(text(costs, chunks));
          check(costs, chunks);
        }
      }
    }
  }
}

// Of chunk i in(i) comes after in(i-1), update(i) after in(i) and update(i-1), out(i) after update(i) and out(i-1), and
// with k sets in(i) after out(i-k). So the end is that of the longest chain. A chain without a way back through a set
// takes all three steps of some chunk's worth and one step for every other chunk: at most sum + (n-1) * longest, which
// the chain through the longest step reaches. A way back begins a new run, k chunks on from the end of the last one:
// with r runs that makes at most r * sum + (n-1 - k (r-1)) * longest. For k = 3 that is never more, as sum <= 3
// longest. fill + n * longest, where fill is what the first chunk takes before its longest step and the last one after
// that.
TEST(DeviceUpdates, WithThreeSetsTakeAsLongAsTheLongestOfInUpdateAndOut) {
  for_all_costs([](const ChunkCosts& costs, std::size_t chunks) {
    const double fill = costs.sum() - costs.longest();
    EXPECT_EQ(seconds_of_updates(kUpdateStagingSets, chunks, costs),
              fill + static_cast<double>(chunks) * costs.longest());
  });
}

// As above for k = 2: where sum > 2 longest, most runs are longest, each of one chunk. Two chunks then take `sum`
// instead of twice the longest step, and of an even number the last one adds its longest step.
TEST(DeviceUpdates, WithTwoSetsTakeLongerWhereTheWaysTogetherTakeLongerThanTheUpdate) {
  std::size_t longer = 0;
  for_all_costs([&](const ChunkCosts& costs, std::size_t chunks) {
    const double longest = costs.longest();
    const double three = costs.sum() + static_cast<double>(chunks - 1) * longest;
    const double runs = static_cast<double>((chunks + 1) / 2) * costs.sum() + (chunks % 2 == 0 ? longest : 0);
    const double expected = costs.sum() > 2 * longest ? runs : three;
    EXPECT_EQ(seconds_of_updates(2, chunks, costs), expected);
    const bool update_is_longest = costs.update == longest;
    if (chunks < 3 || !update_is_longest) return;
    EXPECT_EQ(expected > three, costs.in + costs.out > costs.update);
    longer += expected > three ? 1 : 0;
  });
  EXPECT_GT(longer, 0U) << "no case shows it";
}

TEST(DeviceUpdates, WithOneSetTakeTheSum) {
  for_all_costs([](const ChunkCosts& costs, std::size_t chunks) {
    EXPECT_EQ(seconds_of_updates(1, chunks, costs), static_cast<double>(chunks) * costs.sum());
  });
}

// Seconds of one visit of one layer, and of the bytes of one layer each way.
struct LayerCosts {
  double gather, forward, backward, grads_out;
};

std::string text(const LayerCosts& costs) {
  return "gather " + std::to_string(costs.gather) + ", forward " + std::to_string(costs.forward) + ", backward " +
         std::to_string(costs.backward) + ", gradients out " + std::to_string(costs.grads_out);
}

constexpr LayerCosts kLayerCosts[] = {
    {2, 8, 16, 4}, {4, 4, 4, 4},   {4, 8, 8, 8},  // computing takes longest, or as long
    {8, 2, 4, 1},  {16, 8, 16, 8},                // gathers do
    {2, 4, 8, 32}, {8, 4, 8, 16},                 // the gradients' way out does
};

// An engine with everything at home in host memory, whose groups are all of one size.
class TimedEngine {
 public:
  static constexpr std::size_t kBlocks = 4;
  static constexpr std::size_t kLayers = kBlocks + 2;

  // `micro_batches` go through a layer together.
  TimedEngine(const LayerCosts& costs, GatherAhead ahead, std::size_t micro_batches = 1)
      : device_(kDeviceBytes, {.to_device = kLayerBytes / costs.gather, .to_host = kLayerBytes / costs.grads_out}),
        engine_({.blocks = kBlocks,
                 .micro_batches = micro_batches,
                 .accumulation = Accumulation::Vertical,
                 .head = ToyCompute::Head::Own,
                 .vocabulary = 100,
                 .gather_ahead = ahead,
                 .other_device = &device_}) {
    for (const FlatLayout& layout : engine_.compute.layouts()) {
      EXPECT_EQ(static_cast<double>(layout.numel() * sizeof(float)), kLayerBytes);
    }
    engine_.compute.on_visit = [this, costs](Direction direction, std::size_t) {
      device_.spend(direction == Direction::Forward ? costs.forward : costs.backward);
    };
  }

  double seconds_of_step() {
    (void)engine_.step();
    return device_.seconds();
  }
  double seconds_of_evaluation() {
    (void)engine_.evaluate();
    return device_.seconds();
  }

 private:
  static constexpr double kLayerBytes = 16384;
  SimulatedDevice device_;
  ToyEngine engine_;
};

constexpr double kLayers = TimedEngine::kLayers;

// Each resource is busy for what it has to do; before that something must come to it, and afterwards something is left.
TEST(LayerOverlap, GathersOfAForwardRunBesideTheComputingOfTheLayerBefore) {
  for (const LayerCosts& costs : kLayerCosts) {
    SCOPED_TRACE(text(costs));
    const double gathers = kLayers * costs.gather + costs.forward;
    const double compute = costs.gather + kLayers * costs.forward;
    EXPECT_EQ(TimedEngine(costs, GatherAhead::One).seconds_of_evaluation(), std::max(gathers, compute));
  }
}

TEST(LayerOverlap, WithOneGatherSlotAForwardTakesTheSum) {
  for (const LayerCosts& costs : kLayerCosts) {
    SCOPED_TRACE(text(costs));
    EXPECT_EQ(TimedEngine(costs, GatherAhead::None).seconds_of_evaluation(), kLayers * (costs.gather + costs.forward));
  }
}

// Layers 0..L-2 run forward, then L-1..0 backward, and the last of these needs no parameters.
double fastest_step(const LayerCosts& costs) {
  // The end of the first backward, when the first gradient can leave; there are as many to come.
  const double half =
      std::max(costs.gather + (kLayers - 1) * costs.forward + costs.backward, kLayers * costs.gather + costs.backward);
  const double last_two = std::max(2 * costs.backward + costs.grads_out, costs.backward + 2 * costs.grads_out);
  const double gathers = (2 * kLayers - 2) * costs.gather + last_two;
  const double compute = half + (kLayers - 1) * costs.backward + costs.grads_out;
  const double grads_out = half + kLayers * costs.grads_out;
  return std::max({gathers, compute, grads_out});
}

TEST(LayerOverlap, InAStepGathersAndTheWayOutOfGradientsRunBesideComputing) {
  for (const LayerCosts& costs : kLayerCosts) {
    SCOPED_TRACE(text(costs));
    EXPECT_EQ(TimedEngine(costs, GatherAhead::One).seconds_of_step(), fastest_step(costs));
  }
}

// A gradient that is summed on the device travels once.
TEST(LayerOverlap, InAStepOfTwoMicroBatchesVerticallyAsWell) {
  for (const LayerCosts& costs : kLayerCosts) {
    SCOPED_TRACE(text(costs));
    EXPECT_EQ(TimedEngine(costs, GatherAhead::One, 2).seconds_of_step(),
              fastest_step({costs.gather, 2 * costs.forward, 2 * costs.backward, costs.grads_out}));
  }
}

// Gathers and computing take turns. A gradient leaves while the next layer is gathered, if it is: there is one buffer.
TEST(LayerOverlap, WithOneSlotAStepTakesTheSum) {
  for (const LayerCosts& costs : kLayerCosts) {
    SCOPED_TRACE(text(costs));
    const double forward = (kLayers - 1) * (costs.gather + costs.forward);
    const double between = (kLayers - 2) * std::max(costs.gather, costs.grads_out) + costs.grads_out;
    const double backward = costs.gather + kLayers * costs.backward + between + costs.grads_out;
    EXPECT_EQ(TimedEngine(costs, GatherAhead::None).seconds_of_step(), forward + backward);
  }
}

}  // namespace
}  // namespace strata::zero
