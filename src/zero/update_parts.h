// UpdatePart: a shard as its group's update sees it, whether it exists or is planned.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "offload/shard.h"
#include "zero/update_sites.h"

namespace strata::zero {

struct UpdatePart {
  DType dtype = DType::F32;
  std::size_t elements_per_value = 1;  // StateSpec
  offload::Access access = offload::Access::ReadWrite;
  offload::TierKind home = offload::TierKind::Host;

  double bytes_per_element() const {
    return static_cast<double>(bytes_of(dtype)) / static_cast<double>(elements_per_value);
  }
};

// What an update at `site` moves over the link: to the processor and back what is at home on the device, or to the
// device and back what is not.
LinkBytes link_bytes(std::span<const UpdatePart> parts, UpdateSite site);

// What there is to choose for a group: `parts` are those of parameter, gradient and states, `units` the pieces of the
// parameter.
UpdateWork update_work(std::span<const UpdatePart> parts, std::vector<std::uint64_t> units);

// [Note: update staging] An update on the device copies the next chunk there while this one is updated and the one
// before is taken back: three sets of buffers, because with two the directions of the link would take turns.
inline constexpr std::size_t kUpdateStagingSets = 3;
// Where parts begin in a set: what vector and CUDA loads want.
inline constexpr std::uint64_t kUpdateStagingAlignment = 256;

// Device bytes of one set: a longest chunk of what is not at home on the device; 0 where all of it is. A chunk lies
// within one piece of every shard, and a piece within a slot.
std::uint64_t update_staging_bytes(std::span<const UpdatePart> parts, std::uint64_t slot_bytes);

}  // namespace strata::zero
