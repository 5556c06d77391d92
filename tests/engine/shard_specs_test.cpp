#include "engine/shard_specs.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/bytes.h"
#include "engine/sizes_only.h"

namespace strata::engine {
namespace {

using offload::TierKind;
using test::SizesOnly;

const std::vector<StateSpec> kStates{{"master", DType::F32}, {"exp_avg", DType::F32}, {"exp_avg_sq", DType::F32}};

struct Sums {
  std::uint64_t all = 0;
  std::uint64_t in_host = 0;
};

Sums optimizer_bytes(const std::vector<GroupSpecs>& groups) {
  Sums sums;
  for (const GroupSpecs& group : groups) {
    for (const offload::ShardSpec& state : group.states) {
      sums.all += state.numel * bytes_of(state.dtype);
      sums.in_host += host_bytes(state);
    }
  }
  return sums;
}

TEST(ShardSpecs, NameTypeAndHomeComeFromLayoutAndPlacement) {
  const SizesOnly model(2, 500000, 1000, SizesOnly::Head::Own);
  const Placement placement{TierKind::Nvme, TierKind::Host, TierKind::Device};
  const std::vector<GroupSpecs> groups = shard_specs(model.layouts(), zero::divide(model.layouts(), {}), placement, DType::BF16, DType::F32, kStates);
  ASSERT_EQ(groups.size(), 4U);
  EXPECT_EQ(groups[1].param.dtype, DType::BF16);
  EXPECT_EQ(groups[1].param.home, TierKind::Nvme);
  EXPECT_EQ(groups[1].grad.dtype, DType::F32);
  EXPECT_EQ(groups[1].grad.home, TierKind::Host);
  ASSERT_EQ(groups[1].states.size(), 3U);
  EXPECT_EQ(groups[1].states[2].home, TierKind::Device);
  EXPECT_EQ(groups[1].states[2].name, model.layouts()[1].group().name + "/exp_avg_sq");
  EXPECT_EQ(groups[1].param.numel, model.layouts()[1].shard_numel());
  EXPECT_EQ(groups[1].param.host_numel, 0U);
}

TEST(ShardSpecs, AShareOfAClassIsExactToOneBlock) {
  const SizesOnly model(3, 300000, 77777, SizesOnly::Head::Tied);
  for (const double share : {0.0, 0.1, 0.4, 0.5, 0.999, 1.0}) {
    Placement placement{TierKind::Nvme, TierKind::Host, TierKind::Nvme};
    placement.optimizer_host_share = share;
    const Sums sums = optimizer_bytes(shard_specs(model.layouts(), zero::divide(model.layouts(), {}), placement, DType::BF16, DType::BF16, kStates));
    EXPECT_NEAR(static_cast<double>(sums.in_host), share * static_cast<double>(sums.all), kPageBytes) << share;
  }
}

TEST(ShardSpecs, StatesOfWholeGroupsLieOnTheDeviceAsFarAsTheyFitAndTheRestIsShared) {
  const SizesOnly model(3, 300000, 77777, SizesOnly::Head::Own);
  std::vector<std::uint64_t> bytes;
  for (const zero::GroupDivision& group : zero::divide(model.layouts(), {})) {
    bytes.push_back(device_bytes_of_states(group, kStates));
  }
  Placement placement{TierKind::Nvme, TierKind::Host, TierKind::Nvme};
  placement.optimizer_host_share = 0.4;
  placement.optimizer_device_bytes =
      bytes[0] + bytes[1] + bytes.back();  // the second block is too large for what is left
  const std::vector<GroupSpecs> groups = shard_specs(model.layouts(), zero::divide(model.layouts(), {}), placement, DType::BF16, DType::BF16, kStates);
  std::uint64_t on_drive = 0, in_host = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const bool there = g < 2 || g + 1 == groups.size();
    for (const offload::ShardSpec& state : groups[g].states) {
      EXPECT_EQ(state.home, there ? TierKind::Device : TierKind::Nvme) << g;
      if (!there) on_drive += state.numel * bytes_of(state.dtype);
      in_host += host_bytes(state);
      EXPECT_LE(host_bytes(state), there ? 0 : state.numel * bytes_of(state.dtype)) << g;
    }
    EXPECT_EQ(groups[g].param.home, TierKind::Nvme);
  }
  EXPECT_NEAR(static_cast<double>(in_host), 0.4 * static_cast<double>(on_drive), kPageBytes);
}

TEST(ShardSpecs, AnOptimizerWithoutStatesHasGradientsAllTheSame) {
  const SizesOnly model(1, 1000, 10, SizesOnly::Head::Own);
  const std::vector<GroupSpecs> groups = shard_specs(model.layouts(), zero::divide(model.layouts(), {}), {}, DType::F32, DType::F32, {});
  EXPECT_EQ(groups[0].grad.numel, groups[0].param.numel);
  EXPECT_TRUE(groups[0].states.empty());
}

}  // namespace
}  // namespace strata::engine
