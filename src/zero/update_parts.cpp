#include "zero/update_parts.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/bytes.h"

namespace strata::zero {

LinkBytes link_bytes(std::span<const UpdatePart> parts, UpdateSite site) {
  double read = 0, written = 0;
  for (const UpdatePart& part : parts) {
    const bool there = (part.home == offload::TierKind::Device) == (site == UpdateSite::Device);
    if (there) continue;
    if (offload::reads(part.access)) read += part.bytes_per_element();
    if (offload::writes(part.access)) written += part.bytes_per_element();
  }
  return site == UpdateSite::Device ? LinkBytes{read, written} : LinkBytes{written, read};
}

UpdateWork update_work(std::span<const UpdatePart> parts, std::vector<std::uint64_t> units) {
  const std::span<const UpdatePart> states = parts.subspan(2);
  const bool resident = !states.empty() && std::all_of(states.begin(), states.end(), [](const UpdatePart& state) {
    return state.home == offload::TierKind::Device;
  });
  return {std::move(units), link_bytes(parts, UpdateSite::Host), link_bytes(parts, UpdateSite::Device), resident, {}};
}

std::uint64_t update_staging_bytes(std::span<const UpdatePart> parts, std::uint64_t slot_bytes) {
  std::uint64_t chunk = std::numeric_limits<std::uint64_t>::max();
  for (const UpdatePart& part : parts) {
    chunk = std::min(chunk, slot_bytes / bytes_of(part.dtype) * part.elements_per_value);
  }
  std::uint64_t bytes = 0;
  for (const UpdatePart& part : parts) {
    if (part.home == offload::TierKind::Device) continue;
    bytes += align_up(ceil_div(chunk, part.elements_per_value) * bytes_of(part.dtype), kUpdateStagingAlignment);
  }
  return bytes;
}

}  // namespace strata::zero
