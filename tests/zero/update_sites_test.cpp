#include "zero/update_sites.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>

#include "support/test_seed.h"

namespace strata::zero {
namespace {

// bf16 weights and gradients, 12 bytes of states, all at home in host memory.
UpdateWork streamed(std::vector<std::uint64_t> units) {
  return {std::move(units), {0, 0}, {14, 14}, false, {}};
}

std::vector<UpdateWork> random_groups(std::mt19937_64& random, std::size_t most_units, std::uint64_t largest) {
  std::vector<UpdateWork> groups;
  std::size_t left = 1 + random() % most_units;
  while (left > 0) {
    UpdateWork& group = groups.emplace_back(streamed({}));
    for (std::size_t n = 1 + random() % left; n > 0; --n, --left) group.units.push_back(1 + random() % largest);
  }
  return groups;
}

UpdateCosts random_costs(std::mt19937_64& random) {
  const auto some = [&](double most) { return std::uniform_real_distribution<double>(most / 100, most)(random); };
  return {.host_update = some(3e-9),
          .device_update = some(1e-9),
          .to_device = some(2e-10),
          .to_host = some(2e-10),
          .to_device_busy = some(0.9),
          .to_host_busy = some(0.9)};
}

double seconds_on(UpdateSite site, const UpdateCosts& costs, std::vector<UpdateWork> groups) {
  for (UpdateWork& group : groups) group.only = site;
  return finish_seconds(costs, groups, choose_update_sites(costs, groups));
}

// Every assignment in turn.
double least_seconds(const UpdateCosts& costs, const std::vector<UpdateWork>& groups) {
  std::size_t units = 0;
  for (const UpdateWork& group : groups) units += group.units.size();
  double least = std::numeric_limits<double>::infinity();
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << units); ++bits) {
    UpdateSites sites;
    std::size_t unit = 0;
    for (const UpdateWork& group : groups) {
      std::vector<UpdateSite>& chosen = sites.emplace_back();
      for (std::size_t u = 0; u < group.units.size(); ++u, ++unit) {
        chosen.push_back((bits >> unit & 1) != 0 ? UpdateSite::Device : UpdateSite::Host);
      }
    }
    least = std::min(least, finish_seconds(costs, groups, sites));
  }
  return least;
}

TEST(UpdateSites, ProcessorAndDeviceEndTogether) {
  // The link takes 14 bytes in 2.8 ns, the processor an element in 1.4: two thirds stay on the host.
  const UpdateCosts costs{.host_update = 1.4e-9, .device_update = 1e-10, .to_device = 2e-10, .to_host = 2e-10};
  const std::vector<UpdateWork> groups{streamed(std::vector<std::uint64_t>(30, 1000))};
  const UpdateSites sites = choose_update_sites(costs, groups);
  EXPECT_NEAR(device_share(groups, sites), 1.0 / 3, 1e-9);
  EXPECT_NEAR(finish_seconds(costs, groups, sites), 20 * 1000 * 1.4e-9, 1e-12);
  // Every prefix is balanced: never two in a row on the slower site.
  for (std::size_t u = 1; u < 30; ++u) {
    EXPECT_FALSE(sites[0][u] == UpdateSite::Device && sites[0][u - 1] == UpdateSite::Device) << u;
  }
}

TEST(UpdateSites, ALinkThatIsBusyTakesLess) {
  UpdateCosts costs{.host_update = 1.4e-9, .device_update = 1e-10, .to_device = 1e-10, .to_host = 1e-10};
  const std::vector<UpdateWork> groups{streamed(std::vector<std::uint64_t>(60, 1000))};
  const double idle = device_share(groups, choose_update_sites(costs, groups));
  costs.to_host_busy = 0.5;
  const double busy = device_share(groups, choose_update_sites(costs, groups));
  EXPECT_NEAR(idle, 1.0 / 2, 1e-9);
  EXPECT_NEAR(busy, 1.0 / 3, 1e-9);
}

TEST(UpdateSites, WithSharedCoresACopyNeverPays) {
  const std::uint64_t seed = test::test_seed(1);
  SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 200; ++i) {
    UpdateCosts costs = random_costs(random);
    costs.cores = UpdateCosts::Cores::Shared;
    costs.device_update = costs.host_update;
    const std::vector<UpdateWork> groups = random_groups(random, 12, 1000);
    EXPECT_EQ(device_share(groups, choose_update_sites(costs, groups)), 0) << i;
  }
}

TEST(UpdateSites, WhatIsAtHomeOnTheDeviceStaysThereAndCountsAsItsWork) {
  const UpdateCosts costs{.host_update = 1e-9, .device_update = 1e-9, .to_device = 1e-12, .to_host = 1e-12};
  UpdateWork resident = streamed({1000, 1000});
  resident.on_device = {2, 2};
  resident.only = UpdateSite::Device;
  const std::vector<UpdateWork> groups{resident, streamed({1000, 1000})};
  const UpdateSites sites = choose_update_sites(costs, groups);
  EXPECT_EQ(sites[0], (std::vector{UpdateSite::Device, UpdateSite::Device}));
  EXPECT_EQ(sites[1], (std::vector{UpdateSite::Host, UpdateSite::Host})) << "the processor has time meanwhile";
}

TEST(UpdateSites, EqualCostsGoToTheHost) {
  const UpdateCosts costs{.host_update = 1e-9, .device_update = 1e-9};
  const std::vector<UpdateWork> groups{streamed({7})};
  EXPECT_EQ(choose_update_sites(costs, groups), (UpdateSites{{UpdateSite::Host}}));
  EXPECT_EQ(choose_update_sites({}, groups), (UpdateSites{{UpdateSite::Host}})) << "nothing was measured";
}

TEST(UpdateSitesProperty, EndsLaterThanTheBestByLessThanOneUnit) {
  const std::uint64_t seed = test::test_seed(20);
  SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    const UpdateCosts costs = random_costs(random);
    const std::uint64_t largest = 1 + random() % 1000;
    const std::vector<UpdateWork> groups = random_groups(random, 12, largest);
    const double chosen = finish_seconds(costs, groups, choose_update_sites(costs, groups));
    const double least = least_seconds(costs, groups);
    std::uint64_t unit = 0;
    for (const UpdateWork& group : groups)
      unit = std::max(unit, *std::max_element(group.units.begin(), group.units.end()));
    const std::vector<UpdateWork> one{streamed({unit})};
    const double on_either =
        std::min(seconds_on(UpdateSite::Host, costs, one), seconds_on(UpdateSite::Device, costs, one));
    EXPECT_GE(chosen, least);
    EXPECT_LT(chosen, least + on_either);
  }
}

TEST(UpdateSitesProperty, WithEqualUnitsNothingIsBetter) {
  const std::uint64_t seed = test::test_seed(21);
  SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 300; ++i) {
    const UpdateCosts costs = random_costs(random);
    const std::vector<UpdateWork> groups = random_groups(random, 12, 1);
    const double chosen = finish_seconds(costs, groups, choose_update_sites(costs, groups));
    EXPECT_NEAR(chosen, least_seconds(costs, groups), 1e-9 * chosen) << i;
  }
}

// Homes that differ from group to group, some with nothing to choose.
TEST(UpdateSitesProperty, IsNeverLaterThanWithEverythingOnOneSite) {
  const std::uint64_t seed = test::test_seed(22);
  SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    UpdateCosts costs = random_costs(random);
    if (random() % 4 == 0) costs.cores = UpdateCosts::Cores::Shared;
    std::vector<UpdateWork> groups = random_groups(random, 40, 1000);
    for (UpdateWork& group : groups) {
      const auto bytes = [&] { return static_cast<double>(random() % 16); };
      group.on_host = {bytes(), bytes()};
      group.on_device = {bytes(), bytes()};
    }
    const double chosen = finish_seconds(costs, groups, choose_update_sites(costs, groups));
    EXPECT_LE(chosen, seconds_on(UpdateSite::Host, costs, groups) * (1 + 1e-9));
    EXPECT_LE(chosen, seconds_on(UpdateSite::Device, costs, groups) * (1 + 1e-9));
  }
}

}  // namespace
}  // namespace strata::zero
