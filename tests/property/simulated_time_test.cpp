// The whole pipeline in simulated time against the optimum that an independent simulation finds.
#include <gtest/gtest.h>

#include <cstdio>

#include "support/simulated_step.h"

namespace strata {
namespace {

using offload::Duplex;
using test::OracleAnswer;
using test::SimulatedShape;
using test::SimulatedStep;
using test::StepCost;

struct NamedShape {
  const char* name;
  SimulatedShape shape;
};

std::vector<NamedShape> shapes() {
  const std::vector<DType> fp32(3, DType::F32);
  std::vector<NamedShape> result;
  for (const Duplex duplex : {Duplex::Full, Duplex::Half}) {
    const bool half = duplex == Duplex::Half;
    const auto add = [&](const char* full_name, const char* half_name, SimulatedShape shape) {
      shape.duplex = duplex;
      result.push_back({half ? half_name : full_name, shape});
    };
    add("compute-bound, full", "compute-bound, half",
        {.forward_seconds = 40, .update_seconds_per_page = 12, .read_rate = 1, .write_rate = 1});
    add("NVMe-bound, full", "NVMe-bound, half",
        {.forward_seconds = 0.5, .update_seconds_per_page = 0.1, .read_rate = 1, .write_rate = 0.8});
    add("mixed, full", "mixed, half",
        {.forward_seconds = 8, .update_seconds_per_page = 1, .read_rate = 1, .write_rate = 1});
    add("states only, balanced, full", "states only, balanced, half",
        {.weights_on_nvme = false,
         .forward_seconds = 0.1,
         .update_seconds_per_page = 3,
         .read_rate = 1,
         .write_rate = 1});
    add("8-byte states, slow writes, full", "8-byte states, slow writes, half",
        {.states = {DType::F32, DType::BF16, DType::BF16},
         .forward_seconds = 2,
         .update_seconds_per_page = 0.5,
         .read_rate = 2,
         .write_rate = 0.7});
  }
  return result;
}

TEST(SimulatedTime, Table) {
  std::printf("%-36s %6s %9s %9s %9s %7s %7s %7s %7s\n", "shape", "slots", "bound s", "optimum s", "store s", "ratio",
              "reads", "writes", "planned");
  for (const NamedShape& named : shapes()) {
    for (const std::size_t slots : {12, 24, 48, 96}) {
      SimulatedShape shape = named.shape;
      shape.slots = slots;
      SimulatedStep step(shape);
      const OracleAnswer oracle = step.oracle();
      const StepCost cost = step.steady();
      std::printf(
          "%-36s %6zu %9.1f %9.1f %9.1f %7.3f %7.1f %7.1f | plan %.1f s W %lu kept %zu | oracle kept %zu r %.1f w "
          "%.1f\n",
          named.name, slots, oracle.least_seconds, oracle.seconds, cost.seconds, cost.seconds / oracle.seconds,
          cost.read_pages, cost.written_pages, step.look_ahead().step_seconds,
          step.look_ahead().look_ahead_bytes / kPageBytes, step.look_ahead().kept.size(), oracle.kept, oracle.reads,
          oracle.writes);
    }
  }
}

}  // namespace
}  // namespace strata
