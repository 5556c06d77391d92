// Where updates run and what that takes: what the memory plan counts and the engine carries out.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/optimizer_config.h"
#include "core/shard_optimizer.h"
#include "engine/engine_config.h"
#include "engine/shard_specs.h"
#include "zero/partition.h"
#include "zero/update_sites.h"

namespace strata::engine {

struct UpdatePlan {
  UpdateSite site = UpdateSite::Device;  // Auto: by cost, with staging for it
  std::uint64_t staging_bytes = 0;       // of each of the zero::kUpdateStagingSets on the device; whole pages
  double device_share = 0;               // of the elements: updated on the device
  double streamed_share = 0;             // of those, what is not at home there
  std::uint64_t link_bytes = 0;          // that a step's update moves over the link, both ways
};

// What an update works on, wherever that lies.
struct UpdateShape {
  bool training = true;
  std::span<const zero::GroupDivision> groups;
  DType param_type = DType::BF16;
  offload::Access param_access = offload::Access::Write;
  DType grad_type = DType::BF16;
  std::span<const StateSpec> states;
  zero::UpdateCosts costs;
};

// Without training: nothing.
UpdatePlan plan_updates(const UpdateShape& shape, const Placement& placement, UpdateSite site,
                        std::uint64_t slot_bytes);

// Whether an update of states at home on the device was measured to take less than one on the processor of states
// where `placement` has them; where nothing was measured, whether it moves less over the link.
bool states_on_device_pay(const UpdateShape& shape, const Placement& placement);

// The sites under a setting.
zero::UpdateSites sites_for(UpdateSite site, const zero::UpdateCosts& costs, std::vector<zero::UpdateWork> groups);

// "updates on the host", "60 % of updates on the device, 20 % streamed".
std::string description_of(const UpdatePlan& plan);

}  // namespace strata::engine
