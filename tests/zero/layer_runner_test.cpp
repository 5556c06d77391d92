#include "zero/layer_runner.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "core/error.h"
#include "support/toy_engine.h"

namespace strata::zero {
namespace {

using test::ToyBatch;
using test::ToyCompute;
using test::ToyEngine;

TEST(LayerRunner, SumsTheLossOverMicroBatches) {
  for (const Accumulation accumulation : {Accumulation::Horizontal, Accumulation::Vertical}) {
    ToyEngine engine({.micro_batches = 3, .accumulation = accumulation});
    LossSum expected;
    for (std::size_t m = 0; m < 3; ++m) {
      const LossSum loss = engine.runner->evaluate(ToyBatch(1, m).view());
      expected.loss_sum += loss.loss_sum;
      expected.tokens += loss.tokens;
    }
    EXPECT_GT(expected.tokens, 0);
    const LossSum loss = engine.step();
    EXPECT_EQ(loss.loss_sum, expected.loss_sum);
    EXPECT_EQ(loss.tokens, expected.tokens);
  }
}

TEST(LayerRunner, GeneratesLogitsOfTheLastPositionOfEachSequence) {
  ToyEngine engine({});
  const ToyBatch batch(1, 0);
  const std::vector<float> both = engine.runner->generate({2, 6, batch.tokens, {}});
  ASSERT_EQ(both.size(), 2 * ToyCompute::kVocabulary);
  const std::span<const std::int64_t> second = std::span(batch.tokens).subspan(6);
  const std::vector<float> alone = engine.runner->generate({1, 6, second, {}});
  EXPECT_EQ(alone, std::vector<float>(both.begin() + ToyCompute::kVocabulary, both.end()));
}

TEST(LayerRunner, LeavesEveryGroupSharded) {
  for (const GatherAhead ahead : {GatherAhead::None, GatherAhead::One}) {
    ToyEngine engine({.micro_batches = 2, .gather_ahead = ahead});
    (void)engine.step();
    for (const ParamGroup& group : engine.groups) EXPECT_EQ(group.state(), ParamGroup::State::Sharded);
  }
}

TEST(LayerRunner, CountsTheTimeOfForwardAndBackward) {
  ToyEngine engine({});
  (void)engine.step();
  const BusyTimes::Totals step = engine.busy.take();
  EXPECT_GT(step.of(Work::Forward), 0);
  EXPECT_GT(step.of(Work::Backward), 0);
  (void)engine.evaluate();
  const BusyTimes::Totals evaluation = engine.busy.take();
  EXPECT_GT(evaluation.of(Work::Forward), 0);
  EXPECT_EQ(evaluation.of(Work::Backward), 0);
}

TEST(LayerRunner, AFailureInComputeIsThrownByTheCall) {
  ToyEngine engine({});
  ToyBatch batch(1, 0);
  engine.compute_stream->launch([] { throw DeviceError("the kernel failed"); });
  const BatchView view = batch.view();
  EXPECT_THROW((void)engine.runner->train(engine.visits, {&view, 1}), DeviceError);
}

TEST(LayerRunner, AGradientThatIsNotFiniteStopsTheUpdatesOfItsAndAllLaterGroups) {
  ToyEngine engine({.dtype = DType::BF16, .update_time = UpdateTime::DuringBackward});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const FlatLayout& layout = engine.compute.layouts()[2];
  std::vector<float> values = test::toy_parameters(layout);
  values[layout.params()[0].offset] = nan;
  test::write_shard(engine.store, engine.shards[2].param, test::encode(values, DType::BF16));
  const auto before = engine.snapshot();
  engine.store.set_schedule(engine.train_schedule);
  try {
    (void)engine.step();
    FAIL() << "not noticed";
  } catch (const DataError& error) {
    // The last layer comes first in backward, and the loss itself is none.
    EXPECT_NE(std::string(error.what()).find("the gradient of scale"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(engine.snapshot() == before);
}

TEST(LayerRunner, WhenAcquiringFailsNothingRefersToTheBatchAnyMore) {
  ToyEngine engine({.param_home = offload::TierKind::Nvme, .slots = offload::ShardStore::kMinSlots});
  engine.blobs.fail_read(3);
  {
    const ToyBatch batch(1, 0);
    const BatchView view = batch.view();
    EXPECT_THROW((void)engine.runner->train(engine.visits, {&view, 1}), IoError);
  }
  // The engine ends here: work that still read the batch would show under AddressSanitizer.
}

}  // namespace
}  // namespace strata::zero
