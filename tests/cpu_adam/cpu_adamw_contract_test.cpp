#include "contract/shard_optimizer_contract.h"
#include "cpu_adam/cpu_adamw.h"

namespace strata::test {
namespace {

std::vector<ShardOptimizerCase> cpu_cases() {
  std::vector<ShardOptimizerCase> cases;
  for (const cpu_adam::Isa isa : cpu_adam::usable_isas()) {
    cases.push_back({std::string(cpu_adam::name_of(isa)),
                     [isa](Parallel& parallel) { return std::make_unique<cpu_adam::CpuAdamW>(parallel, isa); }});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(CpuAdamW, ShardOptimizerContract, ::testing::ValuesIn(cpu_cases()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace strata::test
