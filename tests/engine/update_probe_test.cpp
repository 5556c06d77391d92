#include "engine/update_probe.h"

#include <gtest/gtest.h>

namespace strata::engine {
namespace {

TEST(UpdateProbe, MeasuresEveryEncodingAndTheHostSharesItsCores) {
  for (const OptimizerConfig& config :
       {OptimizerConfig{}, OptimizerConfig{OptimizerKind::Lion, MasterEncoding::Remainder, MomentEncoding::Block8}}) {
    const zero::UpdateCosts costs = measure_update_costs({.optimizer = config, .threads = 1});
    EXPECT_GT(costs.host_update, 0);
    EXPECT_EQ(costs.device_update, costs.host_update);
    EXPECT_GT(costs.to_device, 0);
    EXPECT_GT(costs.to_host, 0);
    EXPECT_EQ(costs.cores, zero::UpdateCosts::Cores::Shared);
  }
}

}  // namespace
}  // namespace strata::engine
