// OptimumCase: a simulated step beside the optimum for its slots, as a row of docs/offload.md.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "support/simulated_step.h"

namespace strata::test {

struct NamedShape {
  std::string name;
  SimulatedShape shape;
};

struct OptimumCase {
  OracleAnswer oracle;
  StepCost cost;
  double compute_seconds = 0;
  double chunk_pages = 0;  // SimulatedStep::chunk_pages()
};

// The names of the columns.
inline void print_optimum_head() {
  std::printf("| %-44s | slots | compute | proven bound | optimum | store | ratio | reads | writes |\n", "shape");
}

// Runs the shape with so many slots, prints its row and expects what holds in every case: nothing off the schedule, and
// neither the oracle nor the store faster than anything can be.
inline OptimumCase run_beside_optimum(const NamedShape& named, std::size_t slots) {
  SimulatedShape shape = named.shape;
  shape.slots = slots;
  SimulatedStep step(shape);
  const OracleAnswer oracle = step.oracle();
  const StepCost cost = step.steady();
  std::printf("| %-44s | %5zu | %7.1f | %12.1f | %7.1f | %5.1f | %5.3f | %5.1f | %6.1f |\n", named.name.c_str(), slots,
              step.compute_seconds(), oracle.least_seconds, oracle.seconds, cost.seconds, cost.seconds / oracle.seconds,
              cost.read_pages, cost.written_pages);
  EXPECT_EQ(step.stats().off_schedule, 0U);
  EXPECT_GE(oracle.seconds, oracle.least_seconds * (1 - 1e-9)) << "the oracle beats what cannot be beaten";
  EXPECT_GE(cost.seconds, oracle.least_seconds * (1 - 1e-9)) << "the simulated drive is too fast";
  return {oracle, cost, step.compute_seconds(), step.chunk_pages()};
}

}  // namespace strata::test
