#include "zero/device_updates.h"

#include <algorithm>
#include <utility>

#include "core/bytes.h"
#include "core/error.h"
#include "zero/update_parts.h"

namespace strata::zero {

DeviceUpdates::DeviceUpdates(ShardOptimizer& optimizer, std::span<const Buffer> staging, Streams streams,
                             LinkCounters& counters, BusyTimes& times)
    : optimizer_(optimizer), streams_(streams), counters_(counters), times_(times) {
  for (const Buffer& buffer : staging) sets_.push_back({&buffer, Event()});
}

Event DeviceUpdates::start(const Chunk& chunk) {
  const bool staged = std::any_of(chunk.parts.begin(), chunk.parts.end(),
                                  [](const Part& part) { return part.place == Part::Place::Host; });
  STRATA_EXPECTS(!staged || !sets_.empty(), "an update of what is not at home on the device needs staging there");
  Set* const set = staged ? &sets_[next_++ % sets_.size()] : nullptr;
  if (set != nullptr) streams_.copy_in.wait(set->free);
  std::uint64_t used = 0;
  std::vector<TensorSpan> on_device;
  for (const Part& part : chunk.parts) {
    on_device.push_back(part.place == Part::Place::Device ? part.values : stage(*set, used, part.values));
    if (part.place == Part::Place::Device || !reads(part.access)) continue;
    streams_.copy_in.copy(on_device.back().data, part.values.data, part.values.bytes());
    counters_.to_device += part.values.bytes();
  }
  streams_.update.wait(streams_.copy_in.record());
  launch_timed(
      streams_.update, times_, Work::DeviceUpdate, chunk.group,
      [&optimizer = optimizer_, context = chunk.context, on_device, segments = chunk.segments,
       first = chunk.first_element] {
        optimizer.step(context, {on_device[0], on_device[1], std::span(on_device).subspan(2), segments, first}).wait();
      });
  streams_.copy_out.wait(streams_.update.record());
  for (std::size_t i = 0; i < chunk.parts.size(); ++i) {
    if (chunk.parts[i].place == Part::Place::Host) take_back(chunk.parts[i], on_device[i], chunk.segments);
  }
  const Event done = streams_.copy_out.record();
  if (set != nullptr) set->free = done;
  return done;
}

TensorSpan DeviceUpdates::stage(const Set& set, std::uint64_t& used, const TensorSpan& values) const {
  const std::uint64_t begin = std::exchange(used, align_up(used + values.bytes(), kUpdateStagingAlignment));
  STRATA_EXPECTS(begin + values.bytes() <= set.buffer->bytes(), "a chunk is longer than its staging");
  return {set.buffer->data() + begin, values.dtype, values.numel};
}

void DeviceUpdates::take_back(const Part& part, const TensorSpan& staged, std::span<const Segment> segments) {
  if (!writes(part.access)) return;
  const auto take = [&](std::size_t first, std::size_t numel) {
    const TensorSpan values = part.values.subspan(first, numel);
    streams_.copy_out.copy(values.data, staged.subspan(first, numel).data, values.bytes());
    counters_.to_host += values.bytes();
  };
  if (reads(part.access)) return take(0, part.values.numel);
  // Between the segments lies what was in the set before: see [Note: flat padding].
  for (const Segment& segment : segments) take(segment.offset, segment.numel);
}

}  // namespace strata::zero
