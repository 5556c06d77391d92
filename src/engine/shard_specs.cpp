#include "engine/shard_specs.h"

#include "core/bytes.h"
#include "offload/shares.h"

namespace strata::engine {
namespace {

using offload::ShardKind;
using offload::ShardSpec;
using offload::TierKind;

// Splits a class, whose shards are gathered in one list so that each gets what rounding took from those before it.
void split(const std::vector<ShardSpec*>& shards, double host_share) {
  if (!(host_share > 0)) return;
  std::vector<ShardSpec> copies;
  for (const ShardSpec* shard : shards) copies.push_back(*shard);
  const std::vector<std::uint64_t> numels = offload::host_numels(copies, host_share);
  for (std::size_t i = 0; i < shards.size(); ++i) shards[i]->host_numel = numels[i];
}

}  // namespace

std::vector<GroupSpecs> shard_specs(std::span<const zero::FlatLayout> layouts,
                                    std::span<const zero::GroupDivision> divisions, const Placement& placement,
                                    DType param_type, DType grad_type, std::span<const StateSpec> states) {
  const auto in_memory = [](TierKind home) { return home == TierKind::Nvme ? TierKind::Host : home; };
  std::vector<GroupSpecs> groups;
  const std::vector<bool> on_device = states_on_device(divisions, states, placement.optimizer_device_bytes);
  for (std::size_t g = 0; g < layouts.size(); ++g) {
    const std::string& name = layouts[g].group().name;
    const zero::GroupDivision& division = divisions[g];
    const std::uint64_t numel = division.updated.numel;
    GroupSpecs& group = groups.emplace_back();
    group.param = {name + "/param", ShardKind::Param, param_type, numel, placement.param};
    if (!division.partition.param) {
      group.param.home = in_memory(placement.param);
      group.whole_param = {name + "/whole param", ShardKind::Param, param_type, division.numel, group.param.home};
    }
    if (!division.trainable) continue;
    group.grad = {name + "/grad", ShardKind::Grad, grad_type, numel, placement.grad};
    if (division.adds_locally) {
      group.local_grad = {name + "/local grad", ShardKind::Grad, grad_type, division.numel, in_memory(placement.grad)};
    }
    const TierKind home = on_device[g] ? TierKind::Device : placement.optimizer;
    for (const StateSpec& state : states) {
      group.states.push_back(
          {name + "/" + state.name, ShardKind::OptimState, state.dtype, state.values_for(numel), home});
    }
  }
  std::vector<ShardSpec*> params, optimizer;
  for (GroupSpecs& group : groups) {
    if (!group.whole_param) params.push_back(&group.param);
    for (ShardSpec& state : group.states) {
      if (state.home == placement.optimizer) optimizer.push_back(&state);
    }
  }
  split(params, placement.param_host_share);
  split(optimizer, placement.optimizer_host_share);
  return groups;
}

std::uint64_t device_bytes_of_states(const zero::GroupDivision& group, std::span<const StateSpec> states) {
  std::uint64_t bytes = 0;
  if (!group.trainable) return bytes;
  for (const StateSpec& state : states) {
    bytes += align_up(state.values_for(group.updated.numel) * bytes_of(state.dtype), kPageBytes);
  }
  return bytes;
}

std::vector<bool> states_on_device(std::span<const zero::GroupDivision> divisions, std::span<const StateSpec> states,
                                   std::uint64_t device_bytes) {
  std::vector<bool> on_device;
  for (const zero::GroupDivision& group : divisions) {
    const std::uint64_t bytes = device_bytes_of_states(group, states);
    on_device.push_back(bytes > 0 && bytes <= device_bytes);
    if (on_device.back()) device_bytes -= bytes;
  }
  return on_device;
}

std::uint64_t host_bytes(const ShardSpec& spec) {
  return spec.home == offload::TierKind::Host ? 0 : align_up(spec.host_numel * bytes_of(spec.dtype), kPageBytes);
}

}  // namespace strata::engine
