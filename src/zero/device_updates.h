// DeviceUpdates: updates chunks on the device, whatever tier their bytes are at home on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "core/device.h"
#include "core/shard_optimizer.h"
#include "offload/shard.h"
#include "zero/busy_times.h"
#include "zero/context.h"

namespace strata::zero {

// Three streams, so that the link carries the next chunk in and the last one out while this one is updated; nobody
// else may use them. One thread calls. Ownership: none; buffers, streams, optimizer, counters and times must outlive
// what was started.
class DeviceUpdates {
 public:
  struct Streams {
    Stream& copy_in;
    Stream& update;
    Stream& copy_out;
  };
  // `staging`: sets as [Note: update staging] says, used in turn; empty where all that is updated is at home on the
  // device. `optimizer` runs on the update stream.
  DeviceUpdates(ShardOptimizer& optimizer, std::span<const Buffer> staging, Streams streams, LinkCounters& counters,
                BusyTimes& times);

  // One shard's part of a chunk: in device memory, or in pinned host memory whose contents are valid.
  struct Part {
    TensorSpan values;
    offload::Access access = offload::Access::ReadWrite;
    enum class Place : std::uint8_t { Device, Host } place = Place::Host;
  };
  struct Chunk {
    StepContext context;
    std::size_t group = 0;    // for the times
    std::vector<Part> parts;  // parameter, gradient, states
    std::vector<Segment> segments;
    std::uint64_t first_element = 0;  // ShardViews
  };
  // Queues the update. The event completes when every written part has its new contents where it lies; parts must stay
  // valid until then. Of a parameter that is only written the elements of `segments` are. Events complete in the order
  // of the calls; after a failure all later ones fail with it.
  Event start(const Chunk& chunk);

 private:
  struct Set {
    const Buffer* buffer;
    Event free;  // when the last chunk in it has been taken back
  };
  TensorSpan stage(const Set& set, std::uint64_t& used, const TensorSpan& values) const;
  void take_back(const Part& part, const TensorSpan& staged, std::span<const Segment> segments);

  ShardOptimizer& optimizer_;
  Streams streams_;
  LinkCounters& counters_;
  BusyTimes& times_;
  std::vector<Set> sets_;
  std::size_t next_ = 0;
};

}  // namespace strata::zero
