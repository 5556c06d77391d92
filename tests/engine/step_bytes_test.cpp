// What a step moves between drive and memory when everything lives on the drive and nothing is cached, against the sum
// over the layouts: s bytes of states per parameter are read and written once, a weight is written once and read
// once per gather, and an update needs the old weight only where it completes a remainder.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "core/bytes.h"
#include "engine/engine.h"
#include "engine/parts.h"
#include "engine/tiny_run.h"
#include "offload/shard_store.h"
#include "support/temp_dir.h"
#include "zero/visits.h"

namespace strata::engine {
namespace {

using offload::TierKind;

constexpr std::uint64_t kSlot = std::uint64_t{256} << 10;
constexpr int kLayers = 8;
constexpr int kSteps = 3;

struct Bytes {
  std::uint64_t read = 0, written = 0;
};

// Of one step. The gather that follows an update finds what that wrote, and an update that needs the old weight leaves
// the new one to that gather: one visit.
Bytes expected_bytes(const EngineConfig& config, const MemoryPlan& plan) {
  const ModelParts parts = make_model_parts(config);
  const std::vector<zero::FlatLayout>& layouts = parts.compute->layouts();
  std::vector<std::uint64_t> gathers(layouts.size(), 0);
  const auto visits =
      zero::train_visits(*parts.compute, static_cast<std::size_t>(config.micro_batches), plan.accumulation);
  for (const zero::Action& action : zero::plan_actions(visits, plan.ahead)) {
    if (action.kind == zero::Action::Kind::Unshard) ++gathers[action.index];
  }
  Bytes bytes;
  for (std::size_t g = 0; g < layouts.size(); ++g) {
    const std::uint64_t weight = layouts[g].shard_numel() * bytes_of(config.param_type);
    std::uint64_t states = 0;
    for (const StateSpec& state : state_specs(config.optimizer, config.param_type)) {
      states += state.values_for(layouts[g].shard_numel()) * bytes_of(state.dtype);
    }
    const bool old_weight = reads_param(config.optimizer, config.param_type);
    bytes.read += states + (gathers[g] - 1 + (old_weight ? 1 : 0)) * weight;
    bytes.written += states + weight;
  }
  return bytes;
}

class StepBytes : public testing::Test {
 protected:
  StepBytes() {
    test::write_tiny_model(folder_.path() / "model", "", kLayers);
    // The weights of a layer take three pages.
    test::write_tiny_model(folder_.path() / "wide", "", kLayers / 2);
    set_intermediate_size(folder_.path() / "wide" / "config.json", "1600");
    std::filesystem::create_directories(folder_.path() / "swap");
  }

  static void set_intermediate_size(const std::filesystem::path& file, const std::string& size) {
    std::ostringstream text;
    text << std::ifstream(file).rdbuf();
    std::string keys = text.str();
    const std::string now = R"("intermediate_size": 400)";
    keys.replace(keys.find(now), now.size(), R"("intermediate_size": )" + size);
    std::ofstream(file) << keys;
  }

  // Everything on the drive, and no more pages than one update holds.
  EngineConfig config(const OptimizerConfig& optimizer) const {
    EngineConfig config = test::tiny_engine(folder_.path() / "model");
    config.optimizer = optimizer;
    config.param_home = config.optimizer_home = TierKind::Nvme;
    config.grad_home = TierKind::Host;
    config.nvme_paths = {folder_.path() / "swap"};
    config.nvme_budget = std::uint64_t{64} << 20;
    config.slot_bytes = kSlot;
    return config;
  }
  static EngineConfig squeezed(EngineConfig config) {
    const MemoryPlan ample = Engine::plan(config);
    config.host_budget = ample.need[1] - (ample.slots - ample.pins_at_once) * ample.slot_bytes;
    return config;
  }

  // Pages of a step: weights that are still there where it turns around, after the last forward and between the end of
  // backward and the update, at most; and those that are read once more.
  struct Slack {
    std::uint64_t turning = 0, lost = 0;
  };
  static void expect_bytes(const EngineConfig& config, const Slack& slack) {
    const std::unique_ptr<Engine> engine = Engine::create(squeezed(config));
    ASSERT_EQ(engine->memory_plan().slots, engine->memory_plan().pins_at_once);
    test::train_tiny(*engine, 3);  // the plan of the pages follows the second step

    Bytes moved;
    for (const StepSummary& step : test::train_tiny(*engine, kSteps)) {
      moved.read += step.nvme_read;
      moved.written += step.nvme_written;
    }

    const Bytes expected = expected_bytes(config, engine->memory_plan());
    EXPECT_EQ(moved.written, kSteps * expected.written);
    EXPECT_LE(moved.read, kSteps * (expected.read + slack.lost * kSlot));
    EXPECT_GE(moved.read, kSteps * (expected.read - slack.turning * kSlot));
  }

  test::TempDir folder_;
};

constexpr OptimizerConfig kEncodings[] = {
    {.master = MasterEncoding::Fp32, .moments = MomentEncoding::Fp32},         // s = 12
    {.master = MasterEncoding::Remainder, .moments = MomentEncoding::Fp32},    // 10
    {.master = MasterEncoding::Fp32, .moments = MomentEncoding::Bf16},         // 8
    {.master = MasterEncoding::Fp32, .moments = MomentEncoding::Block8},       // 6.03
    {.master = MasterEncoding::Remainder, .moments = MomentEncoding::Bf16},    // 6
    {.master = MasterEncoding::Remainder, .moments = MomentEncoding::Block8},  // 4.03
};

TEST_F(StepBytes, AreReadAndWrittenOncePerVisitInEveryEncoding) {
  for (const OptimizerConfig& optimizer : kEncodings) {
    for (const std::int64_t micro_batches : {1, 4}) {
      if (micro_batches > 1 && optimizer.moments == MomentEncoding::Bf16) continue;  // nothing new, and time
      SCOPED_TRACE(std::string(name_of(optimizer.master)) + ", moments " + std::string(name_of(optimizer.moments)) +
                   ", " + std::to_string(micro_batches) + " micro-batches");
      EngineConfig one = config(optimizer);
      one.micro_batches = micro_batches;
      one.accumulation = micro_batches > 1 ? Accumulation::Vertical : Accumulation::Horizontal;
      // As below, in fewer pages.
      expect_bytes(one, {.turning = 2, .lost = 1});
    }
  }
}

// The update of a layer leaves its new weights to the gather page by page.
TEST_F(StepBytes, AreReadOncePerVisitAlsoWhereALayerHasMorePagesThanThereAreSlots) {
  for (const OptimizerConfig& optimizer : {kEncodings[0], kEncodings[1], kEncodings[5]}) {
    SCOPED_TRACE(std::string(name_of(optimizer.master)) + ", moments " + std::string(name_of(optimizer.moments)));
    EngineConfig one = config(optimizer);
    one.model = folder_.path() / "wide";
    // A gather that gets no processor for a while loses a page or two to what is read ahead.
    expect_bytes(one, {.turning = 6, .lost = 2});
  }
}

// The same in bytes per parameter, as documented.
TEST_F(StepBytes, AreWhatTheEncodingSays) {
  for (const OptimizerConfig& optimizer : kEncodings) {
    const Bytes bytes = expected_bytes(config(optimizer), Engine::plan(config(optimizer)));
    const ModelParts parts = make_model_parts(config(optimizer));
    const std::vector<zero::FlatLayout>& layouts = parts.compute->layouts();
    double all = 0;  // parameters, padding included
    for (const zero::FlatLayout& layout : layouts) all += static_cast<double>(layout.numel());
    // Those gathered twice: backward needs no embedding, and the head's one visit is both.
    const double blocks = all - static_cast<double>(layouts.front().numel() + layouts.back().numel());
    const double s = state_bytes_per_element(optimizer, DType::BF16);
    const double old_weight = optimizer.master == MasterEncoding::Remainder ? 2 : 0;
    EXPECT_NEAR(static_cast<double>(bytes.read), (s + old_weight) * all + 2 * blocks, 1e-9 * all) << s;
    EXPECT_NEAR(static_cast<double>(bytes.written), (s + 2) * all, 1e-9 * all) << s;
  }
}

}  // namespace
}  // namespace strata::engine
