// What a plan leaves of a GPU's memory to those that take it outside of every budget.
#include <gtest/gtest.h>

#include "comm/planned_ranks.h"
#include "core/bytes.h"
#include "engine/parts.h"

namespace strata::engine {
namespace {

using namespace strata::literals;

Gpu gpu(std::uint64_t free, cuda::TorchPlace torch = cuda::TorchPlace::Device) {
  Gpu asked;
  asked.torch = torch;
  asked.facts.total_bytes = asked.facts.free_bytes = free;
  return asked;
}

EngineConfig config_of(std::size_t ranks) {
  EngineConfig config;
  config.cuda_device = 0;
  config.host_budget = 1_MiB;
  if (ranks > 1) config.comm = std::make_shared<comm::PlannedRanks>(ranks);
  return config;
}

std::uint64_t largest_budget(EngineConfig config, const Gpu& on) {
  std::uint64_t fits = 0;
  for (std::uint64_t step = 1_GiB; step >= 1_MiB; step /= 2) {
    for (;;) {
      config.device_budget = fits + step;
      try {
        resolve_budgets(config, on);
      } catch (const OutOfBudget&) {
        break;
      }
      fits += step;
    }
  }
  return fits;
}

TEST(GpuBudget, LeavesRoomForEachCommunicatorOfNccl) {
  const Gpu real = gpu(8_GiB);
  const std::uint64_t alone = largest_budget(config_of(1), real);
  EXPECT_EQ(alone, 8_GiB - 512_MiB);
  EXPECT_EQ(largest_budget(config_of(2), real), alone - 128_MiB);
  EngineConfig nodes = config_of(4);
  nodes.node_comm = std::make_shared<comm::PlannedRanks>(2);
  nodes.across_comm = std::make_shared<comm::PlannedRanks>(2);
  EXPECT_EQ(largest_budget(nodes, real), alone - 3 * 128_MiB);
  nodes.across_comm = std::make_shared<comm::PlannedRanks>(1);
  EXPECT_EQ(largest_budget(nodes, real), alone - 2 * 128_MiB) << "nobody to speak to";
}

TEST(GpuBudget, LeavesNothingWhereRanksSpeakThroughGloo) {
  EXPECT_EQ(largest_budget(config_of(4), gpu(8_GiB, cuda::TorchPlace::Host)), 8_GiB);
}

TEST(GpuBudget, AGpuThatIsFullHasNone) {
  EXPECT_EQ(resolve_budgets(config_of(2), gpu(600_MiB))[0], 0U);
}

}  // namespace
}  // namespace strata::engine
