#include "engine/update_plan.h"

#include <gtest/gtest.h>

#include "engine/sizes_only.h"

namespace strata::engine {
namespace {

using offload::TierKind;

constexpr std::uint64_t kSlot = 256 << 10;

UpdateShape shape_of(const std::vector<zero::GroupDivision>& groups, const std::vector<StateSpec>& states) {
  UpdateShape shape;
  shape.groups = groups;
  shape.states = states;
  return shape;
}

TEST(UpdatePlan, CountsStagingSharesAndBytesOfTheLink) {
  const test::SizesOnly model(2, 1 << 20, 1 << 20, test::SizesOnly::Head::Own);  // 4 groups of 1 Mi elements
  const std::vector<StateSpec> states{{"master"}, {"exp_avg"}};
  const std::vector<zero::GroupDivision> groups = zero::divide(model.layouts(), {});
  const UpdateShape shape = shape_of(groups, states);
  Placement placement{TierKind::Host, TierKind::Device, TierKind::Nvme};
  placement.optimizer_device_bytes = 8 << 20;  // one group
  const UpdatePlan host = plan_updates(shape, placement, UpdateSite::Host, kSlot);
  EXPECT_EQ(host.device_share, 0);
  EXPECT_EQ(host.staging_bytes, 0U);
  // Gradients come from the device, and the states of one group both ways.
  EXPECT_EQ(host.link_bytes, (4U << 20) * 2 + (1U << 20) * 16);
  const UpdatePlan device = plan_updates(shape, placement, UpdateSite::Device, kSlot);
  EXPECT_EQ(device.device_share, 0.25);
  EXPECT_EQ(device.streamed_share, 0);
  EXPECT_EQ(device.staging_bytes, kSlot / 2) << "weights";
  EXPECT_EQ(device.link_bytes, (3U << 20) * 2 + (1U << 20) * 2);
  const UpdatePlan streamed = plan_updates(shape, placement, UpdateSite::Streamed, kSlot);
  EXPECT_EQ(streamed.device_share, 1);
  EXPECT_EQ(streamed.streamed_share, 0.75);
  EXPECT_EQ(streamed.staging_bytes, kSlot / 2 + 2 * kSlot);
  EXPECT_EQ(streamed.link_bytes, (4U << 20) * 2 + (3U << 20) * 16);
}

TEST(UpdatePlan, WithoutTrainingThereIsNothing) {
  const test::SizesOnly model(2, 1 << 20, 1 << 20, test::SizesOnly::Head::Own);
  const std::vector<zero::GroupDivision> groups = zero::divide(model.layouts(), {});
  UpdateShape shape = shape_of(groups, {});
  shape.training = false;
  const UpdatePlan plan = plan_updates(shape, {}, UpdateSite::Streamed, kSlot);
  EXPECT_EQ(plan.staging_bytes + plan.link_bytes, 0U);
  EXPECT_EQ(plan.device_share, 0);
}

TEST(UpdatePlan, AnOptimizerWithoutStatesStreamsWeightsAndGradients) {
  const test::SizesOnly model(2, 1 << 20, 1 << 20, test::SizesOnly::Head::Own);
  const Placement in_host{TierKind::Host, TierKind::Host, TierKind::Host};
  const UpdatePlan plan =
      plan_updates(shape_of(zero::divide(model.layouts(), {}), {}), in_host, UpdateSite::Streamed, kSlot);
  EXPECT_GT(plan.staging_bytes, 0U);
  EXPECT_EQ(plan.device_share, 1);
}

TEST(UpdatePlan, SitesFollowTheSettingAndTheHomes) {
  const zero::UpdateWork resident{{10, 10}, {16, 16}, {2, 2}, true, {}};
  const zero::UpdateWork elsewhere{{10}, {0, 0}, {14, 14}, false, {}};
  const zero::UpdateCosts costs{.host_update = 1, .device_update = 1, .to_device = 1, .to_host = 1};
  const auto sites = [&](UpdateSite site) { return sites_for(site, costs, {resident, elsewhere}); };
  using enum zero::UpdateSite;
  EXPECT_EQ(sites(UpdateSite::Host), (zero::UpdateSites{{Host, Host}, {Host}}));
  EXPECT_EQ(sites(UpdateSite::Device), (zero::UpdateSites{{Device, Device}, {Host}}));
  EXPECT_EQ(sites(UpdateSite::Streamed), (zero::UpdateSites{{Device, Device}, {Device}}));
  EXPECT_EQ(sites(UpdateSite::Auto), (zero::UpdateSites{{Device, Device}, {Host}}));
}

TEST(UpdatePlan, DescribesItselfInWords) {
  EXPECT_EQ(description_of({}), "updates on the host");
  EXPECT_EQ(description_of({.device_share = 1}), "updates on the device");
  EXPECT_EQ(description_of({.device_share = 0.6}), "60 % of updates on the device");
  EXPECT_EQ(description_of({.device_share = 0.6, .streamed_share = 0.2}),
            "60 % of updates on the device, 20 % of all states streamed there and back");
}

}  // namespace
}  // namespace strata::engine
