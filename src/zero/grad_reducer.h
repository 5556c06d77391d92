// GradReducer: takes a group's flat gradient from the device to its home, summed over ranks and micro-batches.
#pragma once

#include <vector>

#include "zero/context.h"
#include "zero/flat_layout.h"

namespace strata::zero {

// Gradients travel once: as the group's type to their home, where they are added in micro-batch order (in fp32 homes
// when several micro-batches are added). The first contribution of a step overwrites, so homes are never zeroed. Caller
// thread only; additions on the host run on `adder`, in order.
class GradReducer {
 public:
  struct Options {
    DType grad_dtype = DType::F32;           // of the flat gradients on the device: the group's type
    std::vector<std::size_t> contributions;  // per group and step: micro-batches times the layers that name it
  };

  // `staging`: slots of the store's slot size for gradients on their way to host homes; may be null when no group on a
  // host home gets more than one contribution or another type. `host_math` runs on `adder`; `device_math` on the comm
  // stream.
  GradReducer(std::vector<const FlatLayout*> layouts, std::vector<GroupShards> shards, Options options,
              offload::ShardStore& store, DeviceSlots& slots, SlotPool* staging, Communicator& comm, Streams streams,
              Executor& adder, ShardMath& host_math, ShardMath& device_math, LinkCounters& counters);

  // A device buffer for the flat gradient of `group`; the compute stream already waits for it to be free.
  DeviceSlots::Lease acquire(std::size_t group);
  // Sends on what the compute stream, by work queued so far, wrote to `lease`. Blocks while the store has no free page
  // or staging has no free slot. Throws: the first failure, where it is known by then; otherwise finish() throws it.
  void reduce(std::size_t group, const DeviceSlots::Lease& lease);
  // Blocks until every contribution of the step is at home. Throws: the first failure; ContractViolation when a group
  // got fewer contributions than announced.
  void finish();
  // Sum of squares over all groups' gradients as stored, in the fixed order of docs/numerics.md; after finish().
  // Requires: the store's slots hold whole blocks of the norm in every type (multiples of kNormBlock fp32 elements), so
  // that a block never lies in two pieces.
  double sum_of_squares();

  // Whether a host home needs staging for this number of contributions.
  static bool needs_staging(DType device_dtype, DType home_dtype, std::size_t contributions) {
    return device_dtype != home_dtype || contributions > 1;
  }

 private:
  void to_device_home(std::size_t group, TensorSpan shard);
  void to_host_home(std::size_t group, TensorSpan shard);
  void add_on_host(TensorSpan home, TensorSpan shard, offload::Pin pin, bool first);
  std::vector<double> block_sums(std::size_t group);

  const std::vector<const FlatLayout*> layouts_;
  const std::vector<GroupShards> shards_;
  const Options options_;
  offload::ShardStore& store_;
  DeviceSlots& slots_;
  SlotPool* staging_;
  Communicator& comm_;
  Streams streams_;
  Executor& adder_;
  ShardMath& host_math_;
  ShardMath& device_math_;
  LinkCounters& counters_;
  std::vector<std::size_t> received_;  // contributions of this step, per group
  std::vector<Event> pending_;         // ends of contributions not known to be home
  std::vector<Event> staging_free_;    // per staging slot: when it may be overwritten
  std::size_t next_staging_ = 0;
};

}  // namespace strata::zero
