// Which shards a model has, and where their bytes live: the plan counts them and the engine makes them.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/shard_optimizer.h"
#include "offload/shard.h"
#include "zero/partition.h"

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

// The shards of one parameter group on one rank: zero::GroupShards.
struct GroupSpecs {
  offload::ShardSpec param;
  offload::ShardSpec grad;                 // of no use without training and where the group is frozen
  std::vector<offload::ShardSpec> states;  // in the order of ShardOptimizer::states(); empty there
  // In whose homes param and grad lie from element zero::GroupDivision::updated on.
  std::optional<offload::ShardSpec> whole_param;
  std::optional<offload::ShardSpec> local_grad;  // grad lies in it unless that is at home on nvme
};

// In the order of the layouts. Shares are split over the shards of a class by offload::host_numels. What a rank keeps
// whole, its parameters or its own sum of gradients, is never at home on nvme but in host memory then: N ranks would
// write it N times.
std::vector<GroupSpecs> shard_specs(std::span<const zero::FlatLayout> layouts,
                                    std::span<const zero::GroupDivision> divisions, const Placement& placement,
                                    DType param_type, DType grad_type, std::span<const StateSpec> states);

// What the states of a group take on the device: each begins a page. Nothing where it is frozen.
std::uint64_t device_bytes_of_states(const zero::GroupDivision& group, std::span<const StateSpec> states);

// Of each group, whether its states are at home on the device: Placement::optimizer_device_bytes.
std::vector<bool> states_on_device(std::span<const zero::GroupDivision> divisions, std::span<const StateSpec> states,
                                   std::uint64_t device_bytes);

// Bytes that the spec takes in host memory, in whole pages, although its home is elsewhere.
std::uint64_t host_bytes(const offload::ShardSpec& spec);

}  // namespace strata::engine
