// Which shards a model has, and where their bytes live: the plan counts them and the engine makes them.
#pragma once

#include <span>
#include <vector>

#include "core/shard_optimizer.h"
#include "offload/shard.h"
#include "zero/flat_layout.h"

namespace strata::engine {

struct Placement {
  offload::TierKind param = offload::TierKind::Device;
  offload::TierKind grad = offload::TierKind::Device;
  offload::TierKind optimizer = offload::TierKind::Device;
  // Of a class at home on nvme, the share of its bytes that stays in host memory.
  double param_host_share = 0;
  double optimizer_host_share = 0;
  // Where the optimizer's home is not the device: the states of whole groups, in the order of the layouts and as far as
  // they fit in these bytes, are at home there all the same. Shares are those of the rest.
  std::uint64_t optimizer_device_bytes = 0;
  bool operator==(const Placement&) const = default;
};

// The shards of one parameter group.
struct GroupSpecs {
  offload::ShardSpec param;
  offload::ShardSpec grad;                 // of no use without training
  std::vector<offload::ShardSpec> states;  // in the order of ShardOptimizer::states(); empty without training
};

// In the order of the layouts. Shares are split over the shards of a class by offload::host_numels.
std::vector<GroupSpecs> shard_specs(std::span<const zero::FlatLayout> layouts, const Placement& placement,
                                    DType param_type, DType grad_type, std::span<const StateSpec> states);

// What the states of a group take on the device: each begins a page.
std::uint64_t device_bytes_of_states(const zero::FlatLayout& layout, std::span<const StateSpec> states);

// Of each group, whether its states are at home on the device: Placement::optimizer_device_bytes.
std::vector<bool> states_on_device(std::span<const zero::FlatLayout> layouts, std::span<const StateSpec> states,
                                   std::uint64_t device_bytes);

// Bytes that the spec takes in host memory, in whole pages, although its home is elsewhere.
std::uint64_t host_bytes(const offload::ShardSpec& spec);

}  // namespace strata::engine
