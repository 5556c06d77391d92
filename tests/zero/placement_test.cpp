// The toy model trained with every placement of its shards: placement may not change a bit.
#include <gtest/gtest.h>

#include "core/error.h"
#include "support/toy_engine.h"
#include "support/watchdog.h"

namespace strata::zero {
namespace {

using offload::TierKind;
using test::Bytes;
using test::ToyBatch;
using test::ToyCompute;
using test::ToyEngine;
using test::ToyOptions;

using Snapshot = std::map<std::string, Bytes>;

// The same training without any of the code under test: whole tensors in memory, one thread.
class Reference {
 public:
  Reference(DType dtype, std::size_t blocks, std::size_t micro_batches, ToyCompute::Head head = ToyCompute::Head::Tied,
            Accumulation accumulation = Accumulation::Horizontal)
      : dtype_(dtype), micro_batches_(micro_batches), accumulation_(accumulation), compute_(blocks, dtype, 1, head) {
    const auto contributions = count_contributions(train_visits(compute_, micro_batches), compute_.layouts().size());
    for (std::size_t g = 0; g < compute_.layouts().size(); ++g) {
      const FlatLayout& layout = compute_.layouts()[g];
      const std::vector<float> values = test::toy_parameters(layout);
      Group& group = groups_.emplace_back();
      group.param = test::encode(values, dtype);
      group.grad_dtype = test::toy_grad_dtype(dtype, contributions[g]);
      group.grad.resize(layout.numel() * bytes_of(group.grad_dtype));
      for (const StateSpec& state : adam_.states(dtype)) {
        const bool master = state.name == "master";
        group.states.push_back(test::encode(master ? values : std::vector<float>(values.size(), 0.0F), DType::F32));
      }
      compute_.binding(g).bind(group.param.data());
    }
  }

  LossSum step() {
    ++step_;
    for (Group& group : groups_) group.received = 0;
    LossSum total;
    const std::size_t layers = compute_.layers();
    for (std::size_t m = 0; m < micro_batches_; ++m) {
      compute_.begin(m, ToyBatch(step_, m).view(), Pass::Train);
      for (std::size_t layer = 0; layer + 1 < layers; ++layer) compute_.forward(m, layer);
    }
    if (accumulation_ == Accumulation::Horizontal) {
      for (std::size_t m = 0; m < micro_batches_; ++m) {
        for (std::size_t layer = layers; layer-- > 0;) backward(m, layer);
      }
    } else {
      for (std::size_t layer = layers; layer-- > 0;) {
        for (std::size_t m = 0; m < micro_batches_; ++m) backward(m, layer);
      }
    }
    for (std::size_t m = 0; m < micro_batches_; ++m) {
      total.loss_sum += compute_.loss(m).loss_sum;
      total.tokens += compute_.loss(m).tokens;
      compute_.end(m);
    }
    for (std::size_t g = 0; g < groups_.size(); ++g) update(g);
    return total;
  }

  LossSum evaluate(const ToyBatch& batch) {
    compute_.begin(0, batch.view(), Pass::Evaluate);
    for (std::size_t layer = 0; layer < compute_.layers(); ++layer) compute_.forward(0, layer);
    const LossSum loss = compute_.loss(0);
    compute_.end(0);
    return loss;
  }

  Snapshot snapshot() const {
    Snapshot all;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const std::string& name = compute_.layouts()[g].group().name;
      all[name + "/param"] = groups_[g].param;
      for (std::size_t s = 0; s < groups_[g].states.size(); ++s) {
        all[name + "/" + adam_.states(dtype_)[s].name] = groups_[g].states[s];
      }
    }
    return all;
  }

 private:
  struct Group {
    Bytes param;
    Bytes grad;
    DType grad_dtype = DType::F32;
    std::size_t received = 0;
    std::vector<Bytes> states;
  };

  void backward(std::size_t micro_batch, std::size_t layer) {
    const std::vector<std::size_t>& named = compute_.groups_of(layer);
    std::vector<Bytes> flat;
    std::vector<std::byte*> pointers;
    for (const std::size_t g : named) {
      flat.emplace_back(groups_[g].param.size());
      pointers.push_back(flat.back().data());
    }
    compute_.backward(micro_batch, layer, pointers);
    for (std::size_t i = 0; i < named.size(); ++i) {
      Group& group = groups_[named[i]];
      const std::size_t numel = compute_.layouts()[named[i]].numel();
      const TensorSpan home{group.grad.data(), group.grad_dtype, numel};
      group.received++ == 0 ? math_.cast(home, {pointers[i], dtype_, numel})
                            : math_.accumulate(home, {pointers[i], dtype_, numel});
    }
  }

  void update(std::size_t g) {
    Group& group = groups_[g];
    const std::size_t numel = compute_.layouts()[g].numel();
    std::vector<TensorSpan> states;
    for (Bytes& state : group.states) states.push_back({state.data(), DType::F32, numel});
    const std::vector<Segment> segments = compute_.layouts()[g].segments(0, numel);
    adam_.step(test::toy_step(step_),
               {{group.param.data(), dtype_, numel}, {group.grad.data(), group.grad_dtype, numel}, states, segments});
  }

  const DType dtype_;
  const std::size_t micro_batches_;
  const Accumulation accumulation_;
  ToyCompute compute_;
  test::PlainAdam adam_;
  test::PlainMath math_;
  std::vector<Group> groups_;
  std::int64_t step_ = 0;
};

void expect_same(const Snapshot& actual, const Snapshot& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, bytes] : expected) EXPECT_TRUE(actual.at(name) == bytes) << name << " differs";
}

std::string describe(const ToyOptions& options) {
  return "param " + std::string(name_of(options.param_home)) + ", states " + std::string(name_of(options.state_home)) +
         ", grad " + std::string(name_of(options.grad_home)) + ", " + std::string(name_of(options.dtype)) + ", " +
         std::to_string(options.micro_batches) + (options.accumulation == Accumulation::Vertical ? " vertical" : "") +
         " micro-batches, " + std::to_string(options.slots) + " slots, look-ahead " +
         std::to_string(options.look_ahead_pages) + (options.gather_ahead == GatherAhead::One ? ", gather ahead" : "") +
         (options.device.mode == HostDeviceOptions::Mode::Adversarial ? ", adversarial" : "") + ", updates " +
         std::array{"where the states are", "on the host", "on the device",
                    "mixed"}[static_cast<std::size_t>(options.sites)] +
         ", seed " + std::to_string(options.device.seed);
}

// Where updates run may not change a bit either: another site for every case.
test::ToySites sites_of(std::uint64_t seed) {
  return static_cast<test::ToySites>(std::mt19937_64(seed)() % 4);
}

const std::vector<TierKind> kAll = {TierKind::Device, TierKind::Host, TierKind::Nvme};

template <typename Fn>
void for_each_placement(Fn&& fn) {
  for (const TierKind param : kAll) {
    for (const TierKind states : kAll) {
      for (const TierKind grad : {TierKind::Device, TierKind::Host}) fn(param, states, grad);
      // A gradient on the drive meets the others' pages in the same pool, wherever those are from.
      if (param == states) fn(param, states, TierKind::Nvme);
    }
  }
}

// How the same training may be driven.
std::vector<ToyOptions> variants(HostDeviceOptions::Mode mode) {
  constexpr std::size_t kFew = offload::ShardStore::kMinSlots;
  if (mode == HostDeviceOptions::Mode::Adversarial) {
    return {{.slots = kFew, .look_ahead_pages = 2, .gather_ahead = GatherAhead::One},
            {.slots = 9, .look_ahead_pages = 1000, .gather_ahead = GatherAhead::None}};
  }
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  // Instrumented code is many times slower: the two small pools, where threads meet most.
  return {{.slots = kFew, .look_ahead_pages = 1000, .gather_ahead = GatherAhead::One},
          {.slots = 9, .look_ahead_pages = 3, .gather_ahead = GatherAhead::One}};
#else
  return {{.slots = kFew, .look_ahead_pages = 0, .gather_ahead = GatherAhead::None},
          {.slots = kFew, .look_ahead_pages = 1000, .gather_ahead = GatherAhead::One},
          {.slots = 9, .look_ahead_pages = 3, .gather_ahead = GatherAhead::One},
          {.slots = 200, .look_ahead_pages = 8, .gather_ahead = GatherAhead::None},
          {.slots = 200, .look_ahead_pages = 1000, .gather_ahead = GatherAhead::One}};
#endif
}

struct Training {
  DType dtype;
  std::size_t micro_batches;
  HostDeviceOptions::Mode mode;
  Accumulation accumulation = Accumulation::Horizontal;
  // Vertical accumulation adds the gradients of a tied table in another order.
  ToyCompute::Head head() const {
    return accumulation == Accumulation::Vertical ? ToyCompute::Head::Own : ToyCompute::Head::Tied;
  }
};

class Placement : public ::testing::TestWithParam<Training> {};
INSTANTIATE_TEST_SUITE_P(
    Trainings, Placement,
    ::testing::Values(Training{DType::F32, 1, HostDeviceOptions::Mode::Normal},
                      Training{DType::F32, 3, HostDeviceOptions::Mode::Normal},
                      Training{DType::BF16, 1, HostDeviceOptions::Mode::Normal},
                      Training{DType::BF16, 3, HostDeviceOptions::Mode::Normal},
                      Training{DType::F32, 1, HostDeviceOptions::Mode::Adversarial},
                      Training{DType::F32, 3, HostDeviceOptions::Mode::Adversarial},
                      Training{DType::BF16, 1, HostDeviceOptions::Mode::Adversarial},
                      Training{DType::BF16, 3, HostDeviceOptions::Mode::Adversarial},
                      Training{DType::F32, 3, HostDeviceOptions::Mode::Normal, Accumulation::Vertical},
                      Training{DType::BF16, 1, HostDeviceOptions::Mode::Normal, Accumulation::Vertical},
                      Training{DType::BF16, 2, HostDeviceOptions::Mode::Normal, Accumulation::Vertical},
                      Training{DType::BF16, 3, HostDeviceOptions::Mode::Adversarial, Accumulation::Vertical}),
    [](const auto& param_info) {
      return std::string(name_of(param_info.param.dtype)) + "_" + std::to_string(param_info.param.micro_batches) +
             (param_info.param.accumulation == Accumulation::Vertical ? "_vertical" : "") +
             (param_info.param.mode == HostDeviceOptions::Mode::Normal ? "_normal" : "_adversarial");
    });

TEST_P(Placement, TrainsTheSameBitsWhereverShardsLive) {
  const auto [dtype, micro_batches, mode, accumulation] = GetParam();
  const bool adversarial = mode == HostDeviceOptions::Mode::Adversarial;
  const int steps = 2;
  // Several middle layers and several micro-batches need not come together, and together they cost the most time.
  const std::size_t blocks = adversarial || micro_batches > 1 ? 1 : 2;
  Reference reference(dtype, blocks, micro_batches, GetParam().head());  // horizontal
  std::vector<LossSum> losses;
  for (int i = 0; i < steps; ++i) losses.push_back(reference.step());
  const Snapshot expected = reference.snapshot();
  std::uint64_t seed = 1;
  for_each_placement([&](TierKind param, TierKind states, TierKind grad) {
    for (ToyOptions options : variants(mode)) {
      options.param_home = param;
      options.state_home = states;
      options.grad_home = grad;
      options.dtype = dtype;
      options.blocks = blocks;
      options.micro_batches = micro_batches;
      options.accumulation = accumulation;
      options.head = GetParam().head();
      options.device = {.mode = mode, .seed = seed++};
      options.sites = sites_of(options.device.seed);
      SCOPED_TRACE(describe(options));
      const test::Watchdog watchdog(describe(options));
      ToyEngine engine(options);
      for (const LossSum& loss : losses) {
        const LossSum actual = engine.step();
        EXPECT_EQ(actual.loss_sum, loss.loss_sum);
        EXPECT_EQ(actual.tokens, loss.tokens);
      }
      EXPECT_EQ(engine.store.stats().off_schedule, 0U);
      expect_same(engine.snapshot(), expected);
    }
  });
}

// The order in which updates and gathers touch pages then depends on the threads, the bits may not.
void expect_same_bits_with_updates(const Training& training, UpdateTime time) {
  const auto [dtype, micro_batches, mode, accumulation] = training;
  constexpr int kSteps = 3;
  Reference reference(dtype, 1, micro_batches, training.head());
  std::vector<LossSum> losses;
  for (int i = 0; i < kSteps; ++i) losses.push_back(reference.step());
  const Snapshot expected = reference.snapshot();
  std::uint64_t seed = 1;
  for_each_placement([&](TierKind param, TierKind states, TierKind grad) {
    for (ToyOptions options : variants(mode)) {
      options.param_home = param;
      options.state_home = states;
      options.grad_home = grad;
      options.dtype = dtype;
      options.blocks = 1;
      options.micro_batches = micro_batches;
      options.accumulation = accumulation;
      options.head = training.head();
      options.device = {.mode = mode, .seed = seed++};
      options.sites = sites_of(options.device.seed);
      options.update_time = time;
      SCOPED_TRACE(describe(options));
      const test::Watchdog watchdog(describe(options));
      ToyEngine engine(options);
      for (int i = 0; i < kSteps; ++i) {
        if (i == 2) {
          // As after the second step: nothing of an evaluation may touch a group that is still updated.
          (void)engine.evaluate();
        }
        EXPECT_EQ(engine.step().loss_sum, losses[static_cast<std::size_t>(i)].loss_sum);
      }
      engine.settle();
      EXPECT_EQ(engine.store.stats().off_schedule, 0U);
      expect_same(engine.snapshot(), expected);
    }
  });
}

TEST_P(Placement, TrainsTheSameBitsWhileUpdatesRunUnderTheNextForward) {
  expect_same_bits_with_updates(GetParam(), UpdateTime::UnderForward);
}

TEST_P(Placement, TrainsTheSameBitsWhenEachUpdateRunsAsSoonAsItsGradientIsComplete) {
  expect_same_bits_with_updates(GetParam(), UpdateTime::DuringBackward);
}

// With enough layers that a third gradient comes to a home before the step ends.
TEST(Placement, TrainsTheSameBitsWhenGradientsUseTwoHomesInTurn) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const std::size_t micro_batches : {1, 2}) {
      const Training training{dtype, micro_batches, HostDeviceOptions::Mode::Normal, Accumulation::Vertical};
      Reference reference(dtype, 4, micro_batches, training.head());
      for (int i = 0; i < 2; ++i) (void)reference.step();
      const Snapshot expected = reference.snapshot();
      for (const auto mode : {HostDeviceOptions::Mode::Normal, HostDeviceOptions::Mode::Adversarial}) {
        for (const TierKind states : kAll) {
          for (const TierKind grad : {TierKind::Device, TierKind::Host}) {
            const ToyOptions options{.param_home = TierKind::Nvme,
                                     .state_home = states,
                                     .grad_home = grad,
                                     .dtype = dtype,
                                     .blocks = 4,
                                     .micro_batches = micro_batches,
                                     .accumulation = Accumulation::Vertical,
                                     .head = training.head(),
                                     .slots = 9,
                                     .look_ahead_pages = 3,
                                     .update_time = UpdateTime::DuringBackward,
                                     .device = {.mode = mode, .seed = 7}};
            SCOPED_TRACE(describe(options));
            const test::Watchdog watchdog(describe(options));
            ToyEngine engine(options);
            const std::vector<std::size_t> homes = engine.grad_homes();
            EXPECT_EQ(std::set(homes.begin(), homes.end()).size(), 2U);
            for (int i = 0; i < 2; ++i) (void)engine.step();
            expect_same(engine.snapshot(), expected);
          }
        }
      }
    }
  }
}

// A tied table gets the head's contributions first and then the embedding's: one order, wherever shards live.
TEST(Placement, VerticalAccumulationOfATiedGroupAddsLayerByLayer) {
  Reference reference(DType::F32, 1, 3, ToyCompute::Head::Tied, Accumulation::Vertical);
  Reference horizontal(DType::F32, 1, 3);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(reference.step().tokens, horizontal.step().tokens);
  const Snapshot expected = reference.snapshot();
  EXPECT_FALSE(expected == horizontal.snapshot()) << "then a plan could choose";
  for_each_placement([&](TierKind param, TierKind states, TierKind grad) {
    const ToyOptions options{.param_home = param,
                             .state_home = states,
                             .grad_home = grad,
                             .dtype = DType::F32,
                             .blocks = 1,
                             .micro_batches = 3,
                             .accumulation = Accumulation::Vertical,
                             .slots = 9,
                             .look_ahead_pages = 3};
    SCOPED_TRACE(describe(options));
    const test::Watchdog watchdog(describe(options));
    ToyEngine engine(options);
    for (int i = 0; i < 2; ++i) (void)engine.step();
    expect_same(engine.snapshot(), expected);
  });
}

TEST(PlacementReference, LearnsSoThatEqualBitsMeanSomething) {
  Reference reference(DType::BF16, 3, 1);
  const Snapshot before = reference.snapshot();
  const double loss_before = reference.evaluate(ToyBatch(1, 0)).loss_sum;
  for (int i = 0; i < 5; ++i) (void)reference.step();
  EXPECT_LT(reference.evaluate(ToyBatch(1, 0)).loss_sum, loss_before);
  for (const auto& [name, bytes] : reference.snapshot()) EXPECT_FALSE(bytes == before.at(name)) << name;
}

TEST(Placement, AnEvaluationBetweenStepsChangesNothing) {
  for (const TierKind home : kAll) {
    const ToyOptions options{
        .param_home = home, .state_home = home, .dtype = DType::BF16, .slots = 9, .look_ahead_pages = 3};
    SCOPED_TRACE(describe(options));
    const test::Watchdog watchdog(describe(options));
    Reference reference(DType::BF16, options.blocks, 1);
    ToyEngine engine(options);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(engine.evaluate().loss_sum, reference.evaluate(ToyBatch(1000, 0)).loss_sum);
      EXPECT_EQ(engine.step().loss_sum, reference.step().loss_sum);
    }
    EXPECT_EQ(engine.evaluate().loss_sum, reference.evaluate(ToyBatch(1000, 0)).loss_sum);
    EXPECT_EQ(engine.store.stats().off_schedule, 0U);
    expect_same(engine.snapshot(), reference.snapshot());
  }
}

// Bytes of all groups' shards in one type.
std::uint64_t bytes_of_all(const ToyEngine& engine, DType dtype) {
  std::uint64_t bytes = 0;
  for (const FlatLayout& layout : engine.compute.layouts()) bytes += layout.numel() * bytes_of(dtype);
  return bytes;
}

TEST(PlacementTraffic, StatesOnNvmeCrossItOnceEachWayPerStepButForTheCachedShare) {
  for (const std::size_t slots : {6, 12, 200}) {
    SCOPED_TRACE(slots);
    ToyEngine engine({.state_home = TierKind::Nvme, .slots = slots, .look_ahead_pages = 1});
    (void)engine.step();
    const offload::LinkStats before = engine.nvme_tier.stats();
    constexpr std::uint64_t kSteps = 10;
    for (std::uint64_t i = 0; i < kSteps; ++i) (void)engine.step();
    const offload::LinkStats after = engine.nvme_tier.stats();
    const std::uint64_t states = 2 * bytes_of_all(engine, DType::F32);
    const std::uint64_t cached = std::min(states, slots * kPageBytes);
    const std::uint64_t least = states - cached;
    // Two pages in use, one read ahead, one on its way out, and what Belady loses at the ends of a cycle.
    const std::uint64_t most = cached == states ? 0 : least + 5 * kPageBytes;
    EXPECT_GE(after.bytes_read - before.bytes_read, kSteps * least);
    EXPECT_LE(after.bytes_read - before.bytes_read, kSteps * most);
    EXPECT_GE(after.bytes_written - before.bytes_written, kSteps * least);
    EXPECT_LE(after.bytes_written - before.bytes_written, kSteps * most);
  }
}

TEST(PlacementTraffic, ParametersInHostMemoryGoToTheDeviceOncePerGather) {
  ToyEngine engine({.param_home = TierKind::Host, .micro_batches = 3});
  (void)engine.step();
  std::uint64_t gathered = 0;
  for (const ParamGroup& group : engine.groups) gathered += group.gathers() * group.full_bytes();
  EXPECT_EQ(engine.counters.to_device, gathered);
  // The table for the embedding and for the head, every block for forward and for backward, the scale once.
  EXPECT_EQ(engine.groups[1].gathers(), 3 * 2U);
  EXPECT_EQ(engine.groups[4].gathers(), 3U);
}

TEST(PlacementTraffic, GradientsGoToHostMemoryOncePerContribution) {
  ToyEngine engine({.grad_home = TierKind::Host, .dtype = DType::BF16, .micro_batches = 3});
  (void)engine.step();
  const auto counts = count_contributions(train_visits(engine.compute, 3), engine.groups.size());
  std::uint64_t sent = 0;
  for (std::size_t g = 0; g < counts.size(); ++g) sent += counts[g] * engine.groups[g].full_bytes();
  EXPECT_EQ(engine.counters.to_host, sent);
}

TEST(PlacementTraffic, VerticalAccumulationGathersTwiceAStepAndSendsEveryGradientOnce) {
  for (const std::size_t micro_batches : {2, 3, 5}) {
    SCOPED_TRACE(micro_batches);
    ToyEngine engine({.param_home = TierKind::Host,
                      .grad_home = TierKind::Host,
                      .dtype = DType::BF16,
                      .micro_batches = micro_batches,
                      .accumulation = Accumulation::Vertical,
                      .head = ToyCompute::Head::Own});
    (void)engine.step();
    std::uint64_t gathered = 0;
    for (const ParamGroup& group : engine.groups) gathered += group.gathers() * group.full_bytes();
    EXPECT_EQ(engine.counters.to_device, gathered);
    EXPECT_EQ(engine.groups.front().gathers(), 1U);
    EXPECT_EQ(engine.groups[1].gathers(), 2U);
    EXPECT_EQ(engine.groups.back().gathers(), 1U);
    EXPECT_EQ(engine.counters.to_host, bytes_of_all(engine, DType::F32));
  }
}

TEST(PlacementTraffic, VerticalMicroBatchesCrossTheDriveLikeOne) {
  const auto moved = [](std::size_t micro_batches, Accumulation accumulation) {
    ToyEngine engine({.param_home = TierKind::Nvme,
                      .state_home = TierKind::Nvme,
                      .dtype = DType::BF16,
                      .blocks = 12,
                      .micro_batches = micro_batches,
                      .accumulation = accumulation,
                      .head = ToyCompute::Head::Own,
                      .slots = 7,
                      .look_ahead_pages = 1});
    (void)engine.step();
    engine.store.drain();
    const offload::LinkStats before = engine.nvme_tier.stats();
    for (int i = 0; i < 5; ++i) (void)engine.step();
    engine.store.drain();
    const offload::LinkStats after = engine.nvme_tier.stats();
    return std::pair{after.bytes_read - before.bytes_read, after.bytes_written - before.bytes_written};
  };
  const auto one = moved(1, Accumulation::Horizontal);
  const auto near = [](std::uint64_t actual, std::uint64_t expected) {
    // Which of two pages stays at a turn depends on the threads.
    EXPECT_NEAR(static_cast<double>(actual), static_cast<double>(expected), 5 * 2.0 * kPageBytes);
  };
  for (const std::size_t micro_batches : {2, 4}) {
    SCOPED_TRACE(micro_batches);
    const auto vertical = moved(micro_batches, Accumulation::Vertical);
    near(vertical.first, one.first);
    near(vertical.second, one.second);
    // One page of weights per layer, read twice more for each further micro-batch.
    EXPECT_GT(moved(micro_batches, Accumulation::Horizontal).first, one.first + 5 * 12 * kPageBytes);
  }
}

TEST(PlacementTraffic, WithEverythingOnTheDeviceNothingMoves) {
  ToyEngine engine({.param_home = TierKind::Device, .state_home = TierKind::Device, .grad_home = TierKind::Device});
  const offload::LinkStats before = engine.device_tier.stats();
  (void)engine.step();
  EXPECT_EQ(engine.counters.to_device, 0U);
  EXPECT_EQ(engine.counters.to_host, 0U);
  EXPECT_EQ(engine.device_tier.stats().bytes_read, before.bytes_read);
  EXPECT_EQ(engine.device_tier.stats().bytes_written, before.bytes_written);
  EXPECT_EQ(engine.nvme_tier.stats().bytes_read + engine.nvme_tier.stats().bytes_written, 0U);
}

TEST(PlacementTraffic, AnUpdateOnTheHostFetchesGradientsFromTheDeviceAndSendsParametersThere) {
  ToyEngine engine({.param_home = TierKind::Device,
                    .state_home = TierKind::Host,
                    .grad_home = TierKind::Device,
                    .dtype = DType::BF16,
                    .micro_batches = 3});
  const offload::LinkStats before = engine.device_tier.stats();
  (void)engine.step();
  EXPECT_EQ(engine.device_tier.stats().bytes_read - before.bytes_read, bytes_of_all(engine, DType::F32));
  EXPECT_EQ(engine.device_tier.stats().bytes_written - before.bytes_written, bytes_of_all(engine, DType::BF16));
}

TEST(PlacementTraffic, AnUpdateOnTheDeviceBringsGradientsAndTakesParametersBack) {
  ToyEngine engine({.param_home = TierKind::Host,
                    .state_home = TierKind::Device,
                    .grad_home = TierKind::Host,
                    .dtype = DType::BF16,
                    .micro_batches = 3});
  (void)engine.step();
  std::uint64_t gathered = 0;
  for (const ParamGroup& group : engine.groups) gathered += group.gathers() * group.full_bytes();
  EXPECT_EQ(engine.counters.to_device - gathered, bytes_of_all(engine, DType::F32));
  const auto counts = count_contributions(train_visits(engine.compute, 3), engine.groups.size());
  std::uint64_t sent = 0;
  for (std::size_t g = 0; g < counts.size(); ++g) sent += counts[g] * engine.groups[g].full_bytes();
  // Of weights that are only written, no padding.
  std::uint64_t written = 0;
  for (const FlatLayout& layout : engine.compute.layouts()) written += layout.param_numel() * bytes_of(DType::BF16);
  EXPECT_EQ(engine.counters.to_host - sent, written);
}

// Runs until the injected failure shows; false when there was none to show.
bool fails(ToyEngine& engine) {
  try {
    for (int i = 0; i < 2; ++i) (void)engine.step();
    engine.settle();
    engine.store.drain();
  } catch (const IoError& error) {
    EXPECT_EQ(error.failure().hint, "Injected by the test.");
    return true;
  }
  return false;
}

TEST(PlacementFailure, AFailedRequestEndsTrainingWithItsErrorAndNothingHangs) {
  for (const auto mode : {HostDeviceOptions::Mode::Normal, HostDeviceOptions::Mode::Adversarial}) {
    for (const bool read : {true, false}) {
      for (std::uint64_t nth = 0; nth < 60; nth += mode == HostDeviceOptions::Mode::Normal ? 2 : 9) {
        const ToyOptions options{.param_home = TierKind::Nvme,
                                 .state_home = TierKind::Nvme,
                                 .dtype = DType::BF16,
                                 .slots = 7,
                                 .look_ahead_pages = nth / 2 % 4,
                                 .update_time = static_cast<UpdateTime>(nth % 3),
                                 .sites = sites_of(nth),
                                 .device = {.mode = mode, .seed = nth}};
        SCOPED_TRACE(std::string(read ? "read " : "write ") + std::to_string(nth) + ": " + describe(options));
        const test::Watchdog watchdog(describe(options));
        ToyEngine engine(options);
        read ? engine.blobs.fail_read(nth) : engine.blobs.fail_write(nth);
        EXPECT_TRUE(fails(engine));
      }
    }
  }
}

}  // namespace
}  // namespace strata::zero
