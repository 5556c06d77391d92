#include "engine/update_plan.h"

#include <algorithm>
#include <cmath>

#include "core/bytes.h"
#include "zero/update_parts.h"

namespace strata::engine {
namespace {

using offload::Access;
using offload::TierKind;

std::vector<zero::UpdatePart> parts_of(const UpdateShape& shape, const Placement& placement, TierKind states) {
  std::vector<zero::UpdatePart> parts{{shape.param_type, 1, shape.param_access, placement.param},
                                      {shape.grad_type, 1, Access::Read, placement.grad}};
  for (const StateSpec& state : shape.states) {
    parts.push_back({state.dtype, state.elements_per_value, Access::ReadWrite, states});
  }
  return parts;
}

// Pages of the parameter, as the store will cut it but for shares in host memory.
std::vector<std::uint64_t> units_of(std::uint64_t numel, std::uint64_t page_numel) {
  std::vector<std::uint64_t> units;
  for (std::uint64_t first = 0; first < numel; first += page_numel)
    units.push_back(std::min(page_numel, numel - first));
  return units;
}

}  // namespace

UpdatePlan plan_updates(const UpdateShape& shape, const Placement& placement, UpdateSite site,
                        std::uint64_t slot_bytes) {
  UpdatePlan plan;
  plan.site = site;
  if (!shape.training) return plan;
  const std::vector<bool> on_device = states_on_device(shape.groups, shape.states, placement.optimizer_device_bytes);
  std::vector<std::vector<zero::UpdatePart>> parts;
  std::vector<zero::UpdateWork> work;
  for (std::size_t g = 0; g < shape.groups.size(); ++g) {
    const std::uint64_t numel = shape.groups[g].updated.numel;
    parts.push_back(parts_of(shape, placement, on_device[g] ? TierKind::Device : placement.optimizer));
    // Where there is nothing to choose a group is one unit: plans are made by the dozen.
    const std::uint64_t page = site == UpdateSite::Auto ? slot_bytes / bytes_of(shape.param_type) : numel;
    const std::uint64_t updated = shape.groups[g].trainable ? numel : 0;
    work.push_back(zero::update_work(parts.back(), units_of(updated, page)));
  }
  const zero::UpdateSites sites = sites_for(site, shape.costs, work);
  double streamed = 0, all = 0, link = 0;
  for (std::size_t g = 0; g < work.size(); ++g) {
    for (std::size_t u = 0; u < work[g].units.size(); ++u) {
      const auto numel = static_cast<double>(work[g].units[u]);
      const bool device = sites[g][u] == zero::UpdateSite::Device;
      const zero::LinkBytes& bytes = device ? work[g].on_device : work[g].on_host;
      all += numel;
      link += numel * (bytes.to_device + bytes.to_host);
      if (!device) continue;
      if (!work[g].resident) streamed += numel;
      plan.staging_bytes =
          std::max(plan.staging_bytes, align_up(zero::update_staging_bytes(parts[g], slot_bytes), kPageBytes));
    }
  }
  plan.device_share = zero::device_share(work, sites);
  plan.streamed_share = streamed / all;
  plan.link_bytes = static_cast<std::uint64_t>(link);
  return plan;
}

bool states_on_device_pay(const UpdateShape& shape, const Placement& placement) {
  const zero::UpdateWork one{{1},
                             zero::link_bytes(parts_of(shape, placement, placement.optimizer), zero::UpdateSite::Host),
                             zero::link_bytes(parts_of(shape, placement, TierKind::Device), zero::UpdateSite::Device),
                             false,
                             {}};
  const auto sum = [](const zero::LinkBytes& bytes) { return bytes.to_device + bytes.to_host; };
  if (!(shape.costs.host_update > 0)) return sum(one.on_device) < sum(one.on_host);
  return zero::choose_update_sites(shape.costs, {&one, 1}).front().front() == zero::UpdateSite::Device;
}

zero::UpdateSites sites_for(UpdateSite site, const zero::UpdateCosts& costs, std::vector<zero::UpdateWork> groups) {
  for (zero::UpdateWork& group : groups) {
    switch (site) {
      case UpdateSite::Auto:
        if (group.resident) group.only = zero::UpdateSite::Device;
        break;
      case UpdateSite::Host:
        group.only = zero::UpdateSite::Host;
        break;
      case UpdateSite::Device:
        group.only = group.resident ? zero::UpdateSite::Device : zero::UpdateSite::Host;
        break;
      case UpdateSite::Streamed:
        group.only = zero::UpdateSite::Device;
        break;
    }
  }
  return zero::choose_update_sites(costs, groups);
}

std::string description_of(const UpdatePlan& plan) {
  const auto percent = [](double share) {
    return share >= 1 ? std::string() : std::to_string(std::lround(100 * share)) + " % of ";
  };
  if (!(plan.device_share > 0)) return "updates on the host";
  const std::string streamed =
      plan.streamed_share > 0 ? ", " + percent(plan.streamed_share) + "all states streamed there and back" : "";
  return percent(plan.device_share) + "updates on the device" + streamed;
}

}  // namespace strata::engine
