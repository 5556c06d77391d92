#include "zero/update_sites.h"

#include <algorithm>
#include <array>
#include <utility>

namespace strata::zero {
namespace {

// Seconds that each resource is busy.
enum Resource : std::size_t { kProcessor, kDevice, kToDevice, kToHost, kResources };
using Load = std::array<double, kResources>;

Load load_of(const UpdateCosts& costs, const UpdateWork& group, UpdateSite site, std::uint64_t numel) {
  const bool host = site == UpdateSite::Host;
  const LinkBytes& bytes = host ? group.on_host : group.on_device;
  const auto elements = static_cast<double>(numel);
  Load load{};
  load[host ? kProcessor : kDevice] = elements * (host ? costs.host_update : costs.device_update);
  load[kToDevice] = elements * bytes.to_device * costs.to_device / (1 - costs.to_device_busy);
  load[kToHost] = elements * bytes.to_host * costs.to_host / (1 - costs.to_host_busy);
  if (costs.cores == UpdateCosts::Cores::Own) return load;
  Load shared{};
  for (const double seconds : load) shared[kProcessor] += seconds;
  return shared;
}

Load sum(const Load& a, const Load& b) {
  Load total{};
  for (std::size_t r = 0; r < kResources; ++r) total[r] = a[r] + b[r];
  return total;
}

// When `more` has been done after `busy`.
double end_of(const Load& busy, const Load& more) {
  double end = 0;
  for (std::size_t r = 0; r < kResources; ++r) {
    if (more[r] > 0) end = std::max(end, busy[r] + more[r]);
  }
  return end;
}

// In turn each unit where it would end sooner; all on `one` where that is given.
UpdateSites assign(const UpdateCosts& costs, std::span<const UpdateWork> groups, std::optional<UpdateSite> one) {
  UpdateSites sites;
  Load busy{};
  for (const UpdateWork& group : groups) {
    std::vector<UpdateSite>& chosen = sites.emplace_back();
    for (const std::uint64_t numel : group.units) {
      const Load host = load_of(costs, group, UpdateSite::Host, numel);
      const Load device = load_of(costs, group, UpdateSite::Device, numel);
      const UpdateSite cheaper = end_of(busy, device) < end_of(busy, host) ? UpdateSite::Device : UpdateSite::Host;
      chosen.push_back(group.only.value_or(one.value_or(cheaper)));
      busy = sum(busy, chosen.back() == UpdateSite::Host ? host : device);
    }
  }
  return sites;
}

}  // namespace

UpdateSites choose_update_sites(const UpdateCosts& costs, std::span<const UpdateWork> groups) {
  UpdateSites best = assign(costs, groups, {});
  // Units on the host may need the link as well, for what is at home on the device: then one site alone can be better.
  for (const UpdateSite one : {UpdateSite::Host, UpdateSite::Device}) {
    UpdateSites sites = assign(costs, groups, one);
    if (finish_seconds(costs, groups, sites) < finish_seconds(costs, groups, best)) best = std::move(sites);
  }
  return best;
}

double finish_seconds(const UpdateCosts& costs, std::span<const UpdateWork> groups, const UpdateSites& sites) {
  Load busy{};
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t u = 0; u < groups[g].units.size(); ++u) {
      busy = sum(busy, load_of(costs, groups[g], sites[g][u], groups[g].units[u]));
    }
  }
  return *std::max_element(busy.begin(), busy.end());
}

double device_share(std::span<const UpdateWork> groups, const UpdateSites& sites) {
  double device = 0, all = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t u = 0; u < groups[g].units.size(); ++u) {
      const auto numel = static_cast<double>(groups[g].units[u]);
      all += numel;
      if (sites[g][u] == UpdateSite::Device) device += numel;
    }
  }
  return all > 0 ? device / all : 0;
}

}  // namespace strata::zero
