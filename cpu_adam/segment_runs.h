// Cuts a range of a shard into runs that are treated alike.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "core/shard_optimizer.h"

namespace strata::cpu_adam {

// The first segment that ends behind `element`, or the end. Requires: segments sorted by offset and disjoint.
inline std::span<const Segment>::iterator segment_behind(std::span<const Segment> segments, std::size_t element) {
  return std::lower_bound(segments.begin(), segments.end(), element,
                          [](const Segment& segment, std::size_t at) { return segment.offset + segment.numel <= at; });
}

// The segment that holds `element`, or the end.
inline std::span<const Segment>::iterator segment_at(std::span<const Segment> segments, std::size_t element) {
  const auto segment = segment_behind(segments, element);
  return segment != segments.end() && segment->offset <= element ? segment : segments.end();
}

// Calls fn(first, numel, decay) for each part of [begin, end) that a segment covers, in order; the padding between
// segments is left out. Offsets are elements of the view, in 64 bits. Requires: as above.
template <typename Fn>
void for_each_run(std::span<const Segment> segments, std::size_t begin, std::size_t end, Fn&& fn) {
  for (auto segment = segment_behind(segments, begin); segment != segments.end() && segment->offset < end; ++segment) {
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
