#include "cuda/update_ranges.h"

#include <algorithm>

#include "core/state_encodings.h"

namespace strata::cuda {
namespace {

using kernels::Intervals;
using kernels::Treatment;

void add(Intervals& intervals, std::size_t end, Treatment treatment) {
  if (intervals.count == 0 || intervals.treatments[intervals.count - 1] != treatment) {
    intervals.treatments[intervals.count++] = treatment;
  }
  intervals.ends[intervals.count - 1] = static_cast<std::int64_t>(end);
}

// One segment adds up to two intervals, and the end of the range one.
bool has_room(const Intervals& intervals) {
  return intervals.count + 3 <= Intervals::kMost;
}

void cut(Intervals& intervals, std::size_t end) {
  const auto last = static_cast<std::int64_t>(end);
  while (intervals.count > 1 && intervals.ends[intervals.count - 2] >= last) --intervals.count;
  intervals.ends[intervals.count - 1] = last;
}

// Where the block of the grid begins that holds `element`, but not before `from`. The grid is that of the elements'
// indices, so no block has two keys.
std::size_t block_at(std::size_t element, std::uint64_t first_element, std::size_t from) {
  return element - std::min<std::uint64_t>(element - from, (first_element + element) % kScaleBlock);
}

}  // namespace

UpdateRange next_update_range(std::span<const Segment> segments, std::size_t numel, std::uint64_t first_element,
                              std::size_t from, Intervals& intervals) {
  intervals.count = 0;
  const auto is_done = [from](const Segment& segment) {
    return segment.numel == 0 || segment.offset + segment.numel <= from;
  };
  auto segment = std::find_if_not(segments.begin(), segments.end(), is_done);
  if (segment == segments.end()) return {};
  const std::size_t begin = block_at(std::max(from, segment->offset), first_element, from);
  const std::uint64_t to_next_key = (std::uint64_t{1} << 32) - static_cast<std::uint32_t>(first_element + begin);
  const std::size_t limit = begin + std::min<std::uint64_t>(numel - begin, to_next_key);
  std::size_t at = begin;
  for (; segment != segments.end() && segment->offset < limit; ++segment) {
    if (segment->numel == 0) continue;
    if (!has_room(intervals)) {
      // A full list spans more than a block.
      const std::size_t end = block_at(at, first_element, begin);
      cut(intervals, end - begin);
      return {begin, end};
    }
    if (segment->offset > at) add(intervals, segment->offset - begin, Treatment::Padding);
    at = std::min(segment->offset + segment->numel, limit);
    add(intervals, at - begin, segment->decay ? Treatment::Decay : Treatment::NoDecay);
  }
  const std::size_t to_next_block = (kScaleBlock - (first_element + at) % kScaleBlock) % kScaleBlock;
  const std::size_t end = std::min(limit, at + to_next_block);
  if (end > at) add(intervals, end - begin, Treatment::Padding);
  return {begin, end};
}

}  // namespace strata::cuda
