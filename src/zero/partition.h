// What of a parameter group each rank holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "zero/flat_layout.h"

namespace strata::zero {

// Of each kind of tensor: its row of the flat layout (true), or all of it.
// Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC 2020, section 5.
struct Partition {
  bool param = true;
  bool grad = true;
  bool states = true;
  bool operator==(const Partition&) const = default;
};

// Stage 0 divides nothing, 1 the optimizer states, 2 the gradients as well, 3 the parameters as well. One rank has one
// row, which is everything: no stage differs from another there.
constexpr Partition partition_of(int stage, std::size_t world) {
  return world == 1 ? Partition{} : Partition{stage >= 3, stage >= 2, stage >= 1};
}

// A run of elements of the flat layout.
struct FlatRange {
  std::size_t first = 0;
  std::size_t numel = 0;
};

// What a rank updates: the whole group where its states are whole.
inline FlatRange updated_range(const FlatLayout& layout, const Partition& partition, std::size_t rank) {
  if (!partition.states) return {0, layout.numel()};
  return {rank * layout.shard_numel(), layout.shard_numel()};
}

// Whether a rank adds all its contributions to a group's gradient before the ranks' sums are added: not where each is
// reduced as it comes, nor where there is only one to add, `summed_first` of all summed on the device.
constexpr bool adds_locally(const Partition& partition, std::size_t contributions, std::size_t summed_first) {
  return !partition.grad && contributions > (summed_first > 1 ? summed_first : 1);
}

// How a run divides its groups among ranks.
struct Division {
  int stage = 3;
  std::uint64_t whole_below = 0;  // stage 3: groups with fewer elements keep their parameters whole
  std::size_t rank = 0;
  bool by_micro_batch = false;  // GradReducer::Options::Order: nothing is added locally
};

// One group on one rank.
struct GroupDivision {
  Partition partition;
  FlatRange updated;
  bool adds_locally = false;
  std::size_t numel = 0;  // of the flat layout
  bool trainable = true;  // GroupDecl
};

// `contributions` and `summed_first` as GradReducer::Options has them; empty without training.
std::vector<GroupDivision> divide(std::span<const FlatLayout> layouts, const Division& division,
                                  std::span<const std::size_t> contributions = {},
                                  std::span<const std::size_t> summed_first = {});

}  // namespace strata::zero
