// What the parts of a step share: streams, stores and counters. The engine owns all of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/communicator.h"
#include "core/device.h"
#include "core/executor.h"
#include "core/parallel.h"
#include "core/shard_optimizer.h"
#include "offload/shard_store.h"
#include "zero/device_slots.h"

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

// Where a group's shards live in the store.
struct GroupShards {
  offload::ShardId param;
  offload::ShardId grad;
  std::vector<offload::ShardId> states;  // in the order of ShardOptimizer::states()
};

}  // namespace strata::zero
