// What the parts of a step share: streams, stores and counters. The engine owns all of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/communicator.h"
#include "core/device.h"
#include "core/executor.h"
#include "core/parallel.h"
#include "core/shard_optimizer.h"
#include "offload/shard_store.h"
#include "zero/device_slots.h"
#include "zero/partition.h"

namespace strata::zero {

// Each stream exists for an overlap: copy_in brings the next layer while compute runs this one, copy_out takes
// gradients away while the layer before is computed, comm keeps collectives off both.
struct Streams {
  Stream& copy_in;
  Stream& copy_out;
  Stream& comm;
  Stream& compute;
};

// Bytes between host memory and device memory since the start. Counted by the caller's thread and by the updates'.
struct LinkCounters {
  std::atomic<std::uint64_t> to_device = 0;
  std::atomic<std::uint64_t> to_host = 0;
};

// Where a group's shards live in the store. Parameter, gradient and states are those that this rank updates
// (updated_range()).
struct GroupShards {
  offload::ShardId param;
  offload::ShardId grad;                 // of no use where the group is frozen
  std::vector<offload::ShardId> states;  // in the order of ShardOptimizer::states(); none where it is frozen
  std::uint64_t first = 0;               // where these begin in the flat layout
  Partition partition = {};
  // Where the rank keeps the whole parameter: `param` is a part of it, or all. Absent: nowhere, or there is one rank.
  std::optional<offload::ShardId> whole_param = std::nullopt;
  // A second partition of the parameter among the ranks of one node, which gather it from each other until the next
  // update (hpZ: Wang et al., ZeRO++, arXiv 2306.10209, section 3.2): this rank's part. In device or host memory.
  std::optional<offload::ShardId> node_param = std::nullopt;
  // Where it adds its own contributions before the ranks' sums are added (adds_locally()); in device or host memory.
  std::optional<offload::ShardId> local_grad = std::nullopt;
};

}  // namespace strata::zero
