// The optimizers of a GPU: the contract suite, and the bits of the CPU's.
#include <algorithm>

#include "contract/shard_optimizer_contract.h"
#include "cpu_adam/cpu_optimizer.h"
#include "gpu/gpu.h"
#include "support/optimizer_configs.h"

namespace strata::test {
namespace {

std::vector<ShardOptimizerCase> gpu_cases() {
  std::vector<ShardOptimizerCase> cases;
  for (const OptimizerConfig& config : optimizer_configs()) {
    cases.push_back({text_of(config), config, [config](Parallel&) { return hosted_optimizer(config); }});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Gpu, ShardOptimizerContract, ::testing::ValuesIn(gpu_cases()),
                         [](const auto& instance) { return instance.param.name; });

class GpuOptimizer : public ::testing::TestWithParam<ShardOptimizerCase> {};
INSTANTIATE_TEST_SUITE_P(Gpu, GpuOptimizer, ::testing::ValuesIn(gpu_cases()),
                         [](const auto& instance) { return instance.param.name; });

// Several steps of a shard of many blocks, where the index in the model passes 2^32.
TEST_P(GpuOptimizer, HasTheBitsOfTheCpuOverSeveralSteps) {
  constexpr std::size_t kNumel = 300000 + 77;
  constexpr std::uint64_t kFirst = (std::uint64_t{5} << 40) + (std::uint64_t{1} << 32) - (std::uint64_t{1} << 17);
  const std::vector<Segment> segments = {
      {"weight", {}, 0, 200001, true}, {"norm", {}, 200003, 5000, false}, {"last", {}, 210000, 90077, true}};
  const auto parallel = make_thread_pool(0);
  const OptimizerConfig& config = GetParam().config;
  const auto gpu = GetParam().make(*parallel);
  cpu_adam::CpuOptimizer cpu(*parallel, config);
  for (const DType grad : {DType::BF16, DType::F32}) {
    SCOPED_TRACE(name_of(grad));
    const Shard mine(config, DType::BF16, grad, kNumel, 0, 3, segments);
    const Shard expected(config, DType::BF16, grad, kNumel, 0, 3, segments);
    for (const std::int64_t number : {1, 2, 1000}) {
      StepContext context = ordinary_step();
      context.step = number;
      ShardViews views = mine.views(segments), of_cpu = expected.views(segments);
      views.first_element = of_cpu.first_element = kFirst;

      gpu->step(context, views).wait();

      cpu.step(context, of_cpu).wait();
      ASSERT_TRUE(mine.same_bytes(expected)) << "step " << number;
    }
  }
}

}  // namespace
}  // namespace strata::test
