// Updates beside the layers, in simulated time, against the optimum that an independent simulation finds:
// docs/offload.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "support/simulated_step.h"

namespace strata {
namespace {

using offload::Duplex;
using test::OracleAnswer;
using test::SimulatedShape;
using test::SimulatedStep;
using test::StepCost;
using zero::UpdateTime;

struct NamedShape {
  std::string name;
  SimulatedShape shape;
};

const char* name_of(UpdateTime time) {
  return time == UpdateTime::UnderForward ? "under forward" : "during backward";
}

// As simulated_time_test.cpp: pages per second; a layer has four pages of weights and, at s = 12, 24 of states.
std::vector<NamedShape> shapes(UpdateTime time, Duplex duplex) {
  const OptimizerConfig narrow{.master = MasterEncoding::Remainder, .moments = MomentEncoding::Block8};
  std::vector<NamedShape> result;
  for (const bool is_narrow : {false, true}) {
    const OptimizerConfig optimizer = is_narrow ? narrow : OptimizerConfig{};
    const std::string s = is_narrow ? ", s = 4.03" : ", s = 12";
    // 8-bit moments are as many pages of a larger layer.
    const std::uint64_t numel = is_narrow ? 24576 : 8192;
    result.push_back({"compute-bound" + s,
                      {.layer_numel = numel, .optimizer = optimizer, .forward_seconds = 40, .update_seconds_per_page = 5}});
    result.push_back({"NVMe-bound" + s,
                      {.layer_numel = numel,
                       .optimizer = optimizer,
                       .forward_seconds = 0.5,
                       .update_seconds_per_page = 0.1,
                       .write_rate = 0.8}});
    result.push_back({"mixed" + s,
                      {.layer_numel = numel, .optimizer = optimizer, .forward_seconds = 8, .update_seconds_per_page = 1}});
    result.push_back({"states only" + s,
                      {.layer_numel = numel,
                       .weights_on_nvme = false,
                       .optimizer = optimizer,
                       .forward_seconds = 8,
                       .update_seconds_per_page = 1}});
  }
  for (NamedShape& named : result) {
    named.name += std::string(", ") + name_of(time) + (duplex == Duplex::Full ? ", full" : ", half");
    named.shape.update_time = time;
    named.shape.duplex = duplex;
  }
  return result;
}

struct Case {
  UpdateTime time;
  Duplex duplex;
};
class EachOverlap : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Updates, EachOverlap,
                         ::testing::Values(Case{UpdateTime::UnderForward, Duplex::Full},
                                           Case{UpdateTime::UnderForward, Duplex::Half},
                                           Case{UpdateTime::DuringBackward, Duplex::Full},
                                           Case{UpdateTime::DuringBackward, Duplex::Half}),
                         [](const auto& param_info) {
                           return std::string(param_info.param.time == UpdateTime::UnderForward ? "UnderForward"
                                                                                                 : "DuringBackward") +
                                  (param_info.param.duplex == Duplex::Full ? "Full" : "Half");
                         });

TEST_P(EachOverlap, TheExposedUpdateIsWithinFivePercentOfTheOptimum) {
  std::printf("| %-40s | slots | compute | proven bound | optimum | store | ratio | reads | writes |\n", "shape");
  for (const NamedShape& named : shapes(GetParam().time, GetParam().duplex)) {
    for (const std::size_t slots : {12, 32, 96}) {
      SCOPED_TRACE(named.name + ", " + std::to_string(slots) + " slots");
      SimulatedShape shape = named.shape;
      shape.slots = slots;
      SimulatedStep step(shape);
      const OracleAnswer oracle = step.oracle();
      const StepCost cost = step.steady();
      std::printf("| %-40s | %5zu | %7.1f | %7.1f | %7.1f | %7.1f | %5.3f | %5.1f %6.1f| %5.1f | %6.1f | %zu %zu\n", named.name.c_str(),
                  slots, step.compute_seconds(), oracle.least_seconds, oracle.seconds, cost.seconds,
                  cost.seconds / oracle.seconds, oracle.reads, oracle.writes, cost.read_pages, cost.written_pages, oracle.kept, step.look_ahead().kept.size());
      EXPECT_EQ(step.stats().off_schedule, 0U);
      EXPECT_GE(oracle.seconds, oracle.least_seconds * (1 - 1e-9)) << "the oracle beats what cannot be beaten";
      EXPECT_GE(cost.seconds, oracle.least_seconds * (1 - 1e-9)) << "the simulated drive is too fast";
      EXPECT_LE(cost.seconds, 1.05 * oracle.seconds);
      const double optimal = oracle.seconds - step.compute_seconds();
      EXPECT_LE(cost.seconds - step.compute_seconds(), 1.05 * optimal + 1 / shape.read_rate + 1 / shape.write_rate);
    }
  }
}

}  // namespace
}  // namespace strata
