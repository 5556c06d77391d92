// Cuts a range of a shard into runs that are treated alike.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "core/shard_optimizer.h"

namespace strata::cpu_adam {

// Calls fn(first, numel, decay) for each part of [begin, end) that a segment covers, in order; the padding between
// segments is left out. Offsets are elements of the view, in 64 bits. Requires: segments sorted by offset and disjoint.
template <typename Fn>
void for_each_run(std::span<const Segment> segments, std::size_t begin, std::size_t end, Fn&& fn) {
  const auto starts_behind = [](const Segment& segment, std::size_t element) {
    return segment.offset + segment.numel <= element;
  };
  auto segment = std::lower_bound(segments.begin(), segments.end(), begin, starts_behind);
  for (; segment != segments.end() && segment->offset < end; ++segment) {
    const std::size_t first = std::max(segment->offset, begin);
    const std::size_t last = std::min(segment->offset + segment->numel, end);
    if (first < last) fn(first, last - first, segment->decay);
  }
}

// Whether a segment covers part of [begin, end).
inline bool any_run(std::span<const Segment> segments, std::size_t begin, std::size_t end) {
  bool any = false;
  for_each_run(segments, begin, end, [&](std::size_t, std::size_t, bool) { any = true; });
  return any;
}

}  // namespace strata::cpu_adam
