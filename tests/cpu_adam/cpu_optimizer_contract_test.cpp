#include "contract/shard_optimizer_contract.h"
#include "cpu_adam/cpu_optimizer.h"

namespace strata::test {
namespace {

std::vector<OptimizerConfig> configurations() {
  std::vector<OptimizerConfig> configs;
  for (std::size_t kind = 0; kind < kOptimizerKinds; ++kind) {
    for (const MasterEncoding master : {MasterEncoding::Fp32, MasterEncoding::Remainder}) {
      for (const MomentEncoding moments : {MomentEncoding::Fp32, MomentEncoding::Bf16, MomentEncoding::Block8}) {
        configs.push_back({static_cast<OptimizerKind>(kind), master, moments});
      }
    }
  }
  return configs;
}

std::vector<ShardOptimizerCase> cpu_cases() {
  std::vector<ShardOptimizerCase> cases;
  for (const cpu_adam::Isa isa : cpu_adam::usable_isas()) {
    for (const OptimizerConfig& config : configurations()) {
      const std::string name = std::string(cpu_adam::name_of(isa)) + "_" + std::string(name_of(config.kind)) +
                               "_master_" + std::string(name_of(config.master)) + "_moments_" +
                               std::string(name_of(config.moments));
      cases.push_back({name, config, [config, isa](Parallel& parallel) {
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
