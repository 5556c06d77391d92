#include "zero/optimizer_pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "support/shuffling_executor.h"
#include "support/toy_engine.h"

namespace strata::zero {
namespace {

using offload::Access;
using offload::TierKind;

// Pieces of a walk in order, and the chunks between them.
struct Walk {
  std::vector<std::pair<std::size_t, std::uint32_t>> pieces;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> chunks;
};

Walk walk(const offload::ShardStore& store, const UpdateShards& shards) {
  Walk result;
  walk_update(
      store, shards,
      [&](std::size_t position, offload::PieceId piece) { result.pieces.emplace_back(position, piece.piece); },
      [&](std::uint64_t first, std::uint64_t numel) { result.chunks.emplace_back(first, numel); });
  return result;
}

TEST(WalkUpdate, ChunksEndWhereAnyShardsPieceEnds) {
  test::StoreRig rig;  // 1024 floats or 2048 halves to a page
  const UpdateShards shards{rig.add(2500, TierKind::Nvme, DType::BF16),
                            Access::Write,
                            rig.add(2500, TierKind::Host, DType::F32),
                            {rig.add(2500, TierKind::Nvme, DType::F32)}};
  const Walk w = walk(rig.store, shards);
  EXPECT_EQ(w.chunks, (decltype(w.chunks){{0, 1024}, {1024, 1024}, {2048, 452}}));
  EXPECT_EQ(w.pieces, (decltype(w.pieces){{0, 0}, {1, 0}, {2, 0}, {1, 1}, {2, 1}, {0, 1}, {1, 2}, {2, 2}}));
}

TEST(WalkUpdate, TheEndOfAHostShareCutsAPieceOfItsShardAlone) {
  test::StoreRig rig({.slots = 8, .slot_bytes = 3 * kPageBytes});  // 3072 floats or 6144 halves to a page
  offload::ShardSpec shared{"master", offload::ShardKind::OptimState, DType::F32, 8192, TierKind::Nvme, 4096};
  const UpdateShards shards{rig.add(8192, TierKind::Nvme, DType::BF16),
                            Access::Write,
                            rig.add(8192, TierKind::Host, DType::BF16),
                            {rig.store.add(shared)}};
  const Walk w = walk(rig.store, shards);
  EXPECT_EQ(w.chunks, (decltype(w.chunks){{0, 3072}, {3072, 1024}, {4096, 2048}, {6144, 2048}}));
  EXPECT_EQ(w.pieces, (decltype(w.pieces){{0, 0}, {1, 0}, {2, 0}, {2, 1}, {2, 2}, {0, 1}, {1, 1}, {2, 3}}));
}

TEST(UpdateShards, ParametersOfReducedPrecisionAreOnlyWrittenAndGradientsOnlyRead) {
  const UpdateShards shards{{1}, Access::Write, {2}, {{3}, {4}}};
  EXPECT_EQ(shards.count(), 4U);
  EXPECT_EQ(shards.shard(UpdateShards::kGrad), offload::ShardId{2});
  EXPECT_EQ(shards.shard(3), offload::ShardId{4});
  EXPECT_EQ(shards.access(UpdateShards::kParam), Access::Write);
  EXPECT_EQ(shards.access(UpdateShards::kGrad), Access::Read);
  EXPECT_EQ(shards.access(2), Access::ReadWrite);
}

TEST(OptimizerPipeline, PaddingOfAParameterThatIsOnlyWrittenStaysZero) {
  for (const TierKind states : {TierKind::Host, TierKind::Nvme, TierKind::Device}) {
    test::ToyEngine engine({.param_home = TierKind::Nvme,
                            .state_home = states,
                            .dtype = DType::BF16,
                            .slots = offload::ShardStore::kMinSlots});
    (void)engine.step();
    const auto snapshot = engine.snapshot();
    for (const FlatLayout& layout : engine.compute.layouts()) {
      const std::vector<std::byte>& param = snapshot.at(layout.group().name + "/param");
      layout.for_each_gap([&](std::size_t offset, std::size_t count) {
        const auto gap = std::span(param).subspan(2 * offset, 2 * count);
        EXPECT_TRUE(std::all_of(gap.begin(), gap.end(), [](std::byte b) { return b == std::byte{0}; }));
      });
    }
  }
}

// Keeps `states` tensors per element and adds one to each, so that a walk of kMinSlots paged shards is possible.
class CountingOptimizer final : public ShardOptimizer {
 public:
  explicit CountingOptimizer(std::size_t states) : states_(states) {}
  std::vector<StateSpec> states(DType) const override { return std::vector<StateSpec>(states_, {"count", DType::F32}); }
  Event step(const StepContext&, const ShardViews& views) override {
    for (const TensorSpan& state : views.states) {
      for (std::size_t i = 0; i < state.numel; ++i) state.as<float>()[i] += 1;
    }
    for (std::size_t i = 0; i < views.param.numel; ++i) views.param.as<float>()[i] = views.states[0].as<float>()[i];
    return Event();
  }

 private:
  const std::size_t states_;
};

TEST(OptimizerPipeline, TheFewestSlotsSufficeForTheLargestUpdateWhileReadingAhead) {
  for (const std::uint64_t look_ahead : {0, 2, 50}) {
    SCOPED_TRACE(look_ahead);
    test::ShufflingExecutor completions(look_ahead);
    test::StoreRig rig({.slots = offload::ShardStore::kMinSlots,
                        .look_ahead_bytes = look_ahead * kPageBytes,
                        .completions = &completions});
    const FlatLayout layout({"g", {{"p", {20000}}}}, 1);
    UpdateShards shards{rig.add(layout.numel()), Access::Write, rig.add(layout.numel()), {}};
    for (int i = 0; i < 3; ++i) shards.states.push_back(rig.add(layout.numel()));
    ASSERT_EQ(shards.count(), offload::ShardStore::kMinSlots);
    const std::vector<std::byte> zeros(layout.numel() * sizeof(float));
    for (std::size_t i = 0; i < shards.count(); ++i) test::write_shard(rig.store, shards.shard(i), zeros);
    CountingOptimizer optimizer(3);
    BusyTimes busy;
    ThreadExecutor thread("updates");
    OptimizerPipeline pipeline({&layout}, {shards}, rig.store, optimizer, nullptr, thread, busy);
    const std::vector<UpdateShards> updates = {shards};
    rig.store.set_schedule(std::make_shared<offload::Schedule>(
        "train", scheduled_accesses(rig.store, {}, {}, {}, &updates)));
    for (int step = 0; step < 4; ++step) pipeline.step({});
    EXPECT_EQ(rig.store.stats().off_schedule, 0U);
    EXPECT_GT(busy.take().of(Work::Update), 0);
    for (const std::size_t position : {0, 2, 3, 4}) {
      const std::vector<std::byte> bytes = test::read_shard(rig.store, shards.shard(position));
      const auto* const values = reinterpret_cast<const float*>(bytes.data());
      for (std::size_t i = 0; i < 20000; ++i) ASSERT_EQ(values[i], 4.0F) << position << " " << i;
    }
  }
}

TEST(OptimizerPipeline, ParametersAtHomeOnTheDeviceAreThereWhenTheStepReturns) {
  test::ToyEngine engine({.param_home = TierKind::Device,
                          .state_home = TierKind::Host,
                          .device = {.mode = HostDeviceOptions::Mode::Adversarial, .seed = 2}});
  (void)engine.step();
  std::vector<std::vector<std::byte>> homes;
  for (const UpdateShards& update : engine.updates) {
    const std::byte* home = engine.store.device_address(update.param);
    homes.emplace_back(home, home + engine.store.spec(update.param).numel * sizeof(float));
  }
  const auto snapshot = engine.snapshot();
  for (std::size_t g = 0; g < homes.size(); ++g) {
    EXPECT_TRUE(homes[g] == snapshot.at(engine.store.spec(engine.updates[g].param).name));
  }
}

}  // namespace
}  // namespace strata::zero
