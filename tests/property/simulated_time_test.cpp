// The whole pipeline in simulated time against the optimum that an independent simulation finds: docs/offload.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/optimum_case.h"
#include "support/simulated_step.h"

namespace strata {
namespace {

using offload::Duplex;
using test::NamedShape;
using test::SimulatedShape;
using test::SimulatedStep;
using test::StepCost;

// Rates are in pages per second, so a layer of 8192 parameters has four pages of weights and, with fp32 states, eight
// of each state.
std::vector<NamedShape> shapes(Duplex duplex) {
  const std::string suffix = duplex == Duplex::Full ? ", full duplex" : ", half duplex";
  std::vector<NamedShape> result = {
      {"compute-bound", {.forward_seconds = 40, .update_seconds_per_page = 12}},
      {"NVMe-bound", {.forward_seconds = 0.5, .update_seconds_per_page = 0.1, .write_rate = 0.8}},
      {"mixed", {.forward_seconds = 8, .update_seconds_per_page = 1}},
      {"mixed, slow to answer", {.forward_seconds = 8, .update_seconds_per_page = 1, .latency_seconds = 2}},
      {"states only, balanced", {.weights_on_nvme = false, .forward_seconds = 0.1, .update_seconds_per_page = 3}},
      {"8-byte states, slow writes",
       {.layers = 12,
        .optimizer = {.moments = MomentEncoding::Bf16},
        .forward_seconds = 2,
        .update_seconds_per_page = 0.5,
        .read_rate = 2,
        .write_rate = 0.7}},
  };
  for (NamedShape& named : result) {
    named.name += suffix;
    named.shape.duplex = duplex;
  }
  return result;
}

class EachDuplex : public ::testing::TestWithParam<Duplex> {};
INSTANTIATE_TEST_SUITE_P(Drives, EachDuplex, ::testing::Values(Duplex::Full, Duplex::Half),
                         [](const auto& param_info) { return param_info.param == Duplex::Full ? "full" : "half"; });

// A step takes at most 5 % longer than the optimum. What it waits for the drive is, where it is not tiny, at most 5 %
// more, and one page each way: the resolution of a pool of so few slots.
TEST_P(EachDuplex, TheWholePipelineIsWithinFivePercentOfTheOptimum) {
  test::print_optimum_head();
  for (const NamedShape& named : shapes(GetParam())) {
    for (const std::size_t slots : {12, 32, 96}) {
      SCOPED_TRACE(named.name + ", " + std::to_string(slots) + " slots");
      const auto [oracle, cost, compute, chunk] = test::run_beside_optimum(named, slots);
      EXPECT_LE(cost.seconds, 1.05 * oracle.seconds);
      const double tiny = 0.05 * compute;
      const double optimal_wait = oracle.seconds - compute;
      if (optimal_wait > tiny) {
        EXPECT_LE(cost.seconds - compute, 1.05 * optimal_wait + 1 / named.shape.read_rate + 1 / named.shape.write_rate);
      }
    }
  }
}

TEST_P(EachDuplex, MoreSlotsNeverCostTimeNorBytes) {
  for (const NamedShape& named : shapes(GetParam())) {
    StepCost before{1e300, 1e300, 1e300};
    SimulatedShape shape = named.shape;
    shape.slots = 6;
    const std::size_t pages = SimulatedStep(shape).pages();
    for (; shape.slots <= pages + 8; shape.slots += 7) {
      SCOPED_TRACE(named.name + ", " + std::to_string(shape.slots) + " slots");
      const StepCost cost = SimulatedStep(shape).steady();
      const double page_seconds = 1 / shape.read_rate + 1 / shape.write_rate + 2 * shape.latency_seconds;
      EXPECT_LE(cost.seconds, before.seconds + page_seconds);
      EXPECT_LE(cost.read_pages, before.read_pages + 1);
      EXPECT_LE(cost.written_pages, before.written_pages + 1);
      before = cost;
    }
    EXPECT_EQ(before.read_pages + before.written_pages, 0) << "everything fits by now";
  }
}

struct Encoding {
  const char* name;  // bytes per parameter beside the 16-bit weight
  OptimizerConfig optimizer;
};
const std::vector<Encoding> kEncodings = {
    {"s = 12", {}},
    {"s = 10", {.master = MasterEncoding::Remainder}},
    {"s = 8", {.moments = MomentEncoding::Bf16}},
    {"s = 6.03", {.moments = MomentEncoding::Block8}},
    {"s = 6", {.master = MasterEncoding::Remainder, .moments = MomentEncoding::Bf16}},
    {"s = 4.03", {.master = MasterEncoding::Remainder, .moments = MomentEncoding::Block8}},
};

TEST_P(EachDuplex, CountedBytesAreTheStatesButForTheCachedShare) {
  for (const Encoding& encoding : kEncodings) {
    SimulatedShape shape{.weights_on_nvme = false,
                         .optimizer = encoding.optimizer,
                         .forward_seconds = 0.1,
                         .update_seconds_per_page = 0.5,
                         .duplex = GetParam()};
    shape.slots = 6;
    const std::size_t pages = SimulatedStep(shape).pages();
    const double states =
        state_bytes_per_element(encoding.optimizer, DType::BF16) * 8192 * 8 / static_cast<double>(kPageBytes);
    for (; shape.slots < pages; shape.slots += 5) {
      SCOPED_TRACE(std::string(encoding.name) + ", " + std::to_string(shape.slots) + " slots");
      SimulatedStep step(shape);
      const double kept = step.pages_of(step.look_ahead().kept);
      const StepCost cost = step.steady();
      // s (1 - c), to the page: at the ends of a step one may be found by chance, or read twice.
      EXPECT_LE(cost.read_pages, states - kept + 1);
      EXPECT_LE(cost.written_pages, states - kept + 1);
      EXPECT_GE(cost.read_pages, states - kept - 1);
      EXPECT_GE(cost.written_pages, states - kept - 1);
      // The cache is the whole pool but for the window: no thresholds, no power of two.
      EXPECT_GE(step.look_ahead().kept.size() + 12, shape.slots);
    }
  }
}

TEST_P(EachDuplex, AnEvaluationBetweenStepsCostsTrainingNoMoreThanTheSlotsThatPagesPassThrough) {
  for (const NamedShape& named : shapes(GetParam())) {
    for (const std::size_t slots : {12, 48, 96}) {
      SCOPED_TRACE(named.name + ", " + std::to_string(slots) + " slots");
      SimulatedShape shape = named.shape;
      shape.slots = slots;
      SimulatedStep step(shape);
      const StepCost undisturbed = step.steady();
      step.evaluate();
      step.evaluate();
      const StepCost after = step.one_step();
      const auto passing = static_cast<double>(slots - step.look_ahead().kept.size());
      EXPECT_LE(after.read_pages, undisturbed.read_pages + passing);
      EXPECT_LE(after.written_pages, undisturbed.written_pages + passing);
      const StepCost later = step.steady(1, 3);
      EXPECT_LE(later.read_pages, undisturbed.read_pages + 0.5);
      EXPECT_LE(later.written_pages, undisturbed.written_pages + 0.5);
      EXPECT_EQ(step.stats().off_schedule, 0U);
    }
  }
}

TEST(SimulatedTime, AStrayAccessCostsOneFetch) {
  SimulatedStep step({.weights_on_nvme = false, .forward_seconds = 8, .update_seconds_per_page = 1, .slots = 24});
  const StepCost undisturbed = step.steady();
  const std::vector<offload::PieceId>& kept = step.look_ahead().kept;
  std::uint32_t piece = 0;
  while (std::find(kept.begin(), kept.end(), step.state_piece(5, piece)) != kept.end()) ++piece;
  step.stray(step.state_piece(5, piece));
  EXPECT_EQ(step.stats().off_schedule, 1U);
  const StepCost disturbed = step.one_step();
  EXPECT_LE(disturbed.read_pages, undisturbed.read_pages + 1);
  EXPECT_LE(disturbed.written_pages, undisturbed.written_pages + 1);
  EXPECT_EQ(step.stats().off_schedule, 1U);
}

}  // namespace
}  // namespace strata
