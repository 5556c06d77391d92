// Cuts the segments of a view into ranges that one launch updates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/shard_optimizer.h"
#include "kernels/intervals.h"

namespace strata::cuda {

// Elements [begin, end) of a view. Empty where no segment is left.
struct UpdateRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool empty() const { return begin == end; }
};

// The next range with all updated elements from `from` on, and in `intervals` what happens to its elements; padding
// before it is left out. One range holds the whole view, unless the upper half of the element's index changes inside it
// or it has more intervals than an argument of a kernel holds; ranges are cut between blocks of 8-bit moments.
// Requires: segments sorted and disjoint within `numel`; `from` is 0 or the end of the range before.
UpdateRange next_update_range(std::span<const Segment> segments, std::size_t numel, std::uint64_t first_element,
                              std::size_t from, kernels::Intervals& intervals);

}  // namespace strata::cuda
