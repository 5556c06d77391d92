#include "zero/partition.h"

#include "core/error.h"

namespace strata::zero {

std::vector<GroupDivision> divide(std::span<const FlatLayout> layouts, const Division& division,
                                  std::span<const std::size_t> contributions,
                                  std::span<const std::size_t> summed_first) {
  STRATA_EXPECTS(contributions.size() == summed_first.size(), "two counts per group");
  std::vector<GroupDivision> groups;
  for (std::size_t g = 0; g < layouts.size(); ++g) {
    const FlatLayout& layout = layouts[g];
    GroupDivision& group = groups.emplace_back();
    const bool small = layout.param_numel() < division.whole_below;
    group.partition = partition_of(division.stage == 3 && small ? 2 : division.stage, layout.world());
    group.updated = updated_range(layout, group.partition, division.rank);
    group.adds_locally = !division.by_micro_batch && !contributions.empty() &&
                         adds_locally(group.partition, contributions[g], summed_first[g]);
    group.numel = layout.numel();
    group.trainable = layout.group().trainable;
  }
  return groups;
}

}  // namespace strata::zero
