#include "contract/shard_optimizer_contract.h"
#include "cpu_adam/cpu_optimizer.h"
#include "support/optimizer_configs.h"

namespace strata::test {
namespace {

std::vector<ShardOptimizerCase> cpu_cases() {
  std::vector<ShardOptimizerCase> cases;
  for (const cpu_adam::Isa isa : cpu_adam::usable_isas()) {
    for (const OptimizerConfig& config : optimizer_configs()) {
      cases.push_back(
          {std::string(cpu_adam::name_of(isa)) + "_" + text_of(config), config, [config, isa](Parallel& parallel) {
             return std::make_unique<cpu_adam::CpuOptimizer>(parallel, config, isa);
           }});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(CpuOptimizer, ShardOptimizerContract, ::testing::ValuesIn(cpu_cases()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace strata::test
