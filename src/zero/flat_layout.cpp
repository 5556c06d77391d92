#include "zero/flat_layout.h"

#include <algorithm>
#include <numeric>

#include "core/bytes.h"
#include "core/error.h"

namespace strata::zero {

FlatLayout::FlatLayout(const GroupDecl& group, std::size_t world, std::size_t row_parts)
    : group_(group), world_(world) {
  STRATA_EXPECTS(world > 0, "a layout needs at least one rank");
  std::size_t end = 0;
  params_.reserve(group_.params.size());
  for (const ParamDecl& param : group_.params) {
    const std::size_t offset = align_up(end, kParamAlignment);
    params_.push_back({offset, param.numel()});
    end = offset + param.numel();
    param_numel_ += param.numel();
  }
  // With several ranks a shard boundary falls on the grid of the norm's blocks, so that every rank sums whole blocks.
  const std::size_t alignment = world * row_parts == 1 ? kShardAlignment : std::lcm(ShardMath::kNormBlock, row_parts);
  shard_numel_ = align_up(std::max<std::size_t>(ceil_div(end, world), 1), alignment);
}

std::vector<Segment> FlatLayout::segments(std::size_t first, std::size_t count) const {
  std::vector<Segment> result;
  const std::size_t last = first + count;
  // Parameters are sorted by offset: start at the last one that begins at or before `first`.
  auto it = std::upper_bound(params_.begin(), params_.end(), first,
                             [](std::size_t value, const ParamSlot& slot) { return value < slot.offset; });
  if (it != params_.begin()) --it;
  for (; it != params_.end() && it->offset < last; ++it) {
    const std::size_t begin = std::max(first, it->offset);
    const std::size_t end = std::min(last, it->offset + it->numel);
    if (begin >= end) continue;
    const ParamDecl& decl = group_.params[static_cast<std::size_t>(it - params_.begin())];
    result.push_back({decl.name, decl.shape, begin - first, end - begin, decl.decay});
  }
  return result;
}

}  // namespace strata::zero
