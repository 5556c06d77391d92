// GradReducer: takes a group's flat gradient from the device to its home, summed over ranks and micro-batches.
#pragma once

#include <functional>
#include <vector>

#include "zero/context.h"
#include "zero/flat_layout.h"

namespace strata::zero {

// Contributions are added in the order in which they are reduced. They travel in the group's type and are added at
// home, but for those that are summed on the device first (Options::summed_first): that sum is made in fp32 and travels
// once, in the home's type. With one rank and homes in fp32 the same numbers are added in the same order either way, so
// the bits are the same; a narrower home rounds after each addition there, but once for such a sum.
//
// With several ranks what travels is first summed over them, in rank order: each contribution, and the sums made on the
// device; but where a rank adds locally (GroupShards::local_grad), its own sum, once. Options::Order tells another way.
// The first contribution of a step overwrites, so homes are never zeroed. The squares of a piece are summed as soon as
// its last contribution is there, before its page can leave. Caller thread only, unless said otherwise; what is done on
// the host runs on `adder`, in order.
class GradReducer {
 public:
  struct Options {
    DType grad_dtype = DType::F32;           // of the flat gradients on the device: the group's type
    std::vector<std::size_t> contributions;  // per group and step: micro-batches times the layers that name it; 0 where
                                             // it is frozen
    // Of those the first ones that make one sum on the device before they go to their home (leading_contributions());
    // empty: 1 each, which goes as it is.
    std::vector<std::size_t> summed_first = {};
    // For these sums, and for local ones on their way from host memory: the flat gradient in fp32; null when there are
    // none.
    DeviceSlots* accumulators = nullptr;
    // Whether a gradient with a value that is not finite fails its group (DataError that names it). Where updates begin
    // before all gradients are known, nothing else can stop them in time.
    enum class NotFinite : std::uint8_t { Counts, Fails } not_finite = NotFinite::Counts;
    // ByRank: each contribution is the sum over the ranks. ByMicroBatch: each rank's contribution is added by itself,
    // in rank order, so that N ranks with k micro-batches add the same numbers in the same order as one with N k: equal
    // bits, in fp32. Takes N times the traffic to the home; nothing is summed on the device or locally then.
    enum class Order : std::uint8_t { ByRank, ByMicroBatch } order = Order::ByRank;
    // Per group, the group whose home it uses (grad_homes_in_turn()); empty: each its own.
    std::vector<std::size_t> homes = {};
  };

  // `staging`: slots of the store's slot size for gradients on their way to host homes; may be null when no group on a
  // host home gets more than one contribution or another type. `host_math` runs on `adder`; `device_math` on the comm
  // stream.
  GradReducer(std::vector<const FlatLayout*> layouts, std::vector<GroupShards> shards, Options options,
              offload::ShardStore& store, DeviceSlots& slots, SlotPool* staging, Communicator& comm, Streams streams,
              Executor& adder, ShardMath& host_math, ShardMath& device_math, LinkCounters& counters);

  // Waits for what is under way.
  ~GradReducer();
  GradReducer(const GradReducer&) = delete;
  GradReducer& operator=(const GradReducer&) = delete;

  // A device buffer for the flat gradient of `group`; the compute stream already waits for it to be free.
  DeviceSlots::Lease acquire(std::size_t group);
  // Sends on what the compute stream, by work queued so far, wrote to `lease`. Blocks while the store has no free page
  // or staging has no free slot. Throws: the first failure, where it is known by then; otherwise finish() throws it.
  void reduce(std::size_t group, const DeviceSlots::Lease& lease);
  // Completes when the step's gradient of the group is at home and its sum of squares is known. Requires: all its
  // contributions have been reduced.
  const Event& complete(std::size_t group) const;
  // The group's gradient is read at its home until `done` completes: the next group to use that home waits for it.
  // Without this call it waits for complete().
  void in_use_until(std::size_t group, const Event& done);
  // Blocks until every group is complete. Throws: the first failure; ContractViolation when a group got fewer
  // contributions than announced.
  void finish();
  // Sum of squares over all groups' gradients as stored, in the fixed order of docs/numerics.md; after finish().
  // Requires: the store's slots hold whole blocks of the norm in every type (multiples of kNormBlock fp32 elements), so
  // that a block never lies in two pieces.
  double sum_of_squares();

  // Whether a host home needs staging for this number of contributions, the first `summed_first` summed on the device.
  static bool needs_staging(DType device_dtype, DType home_dtype, std::size_t contributions,
                            std::size_t summed_first = 1) {
    return contributions > summed_first || (summed_first <= 1 && device_dtype != home_dtype);
  }

 private:
  std::size_t summed_first(std::size_t group) const {
    return options_.summed_first.empty() ? 1 : options_.summed_first[group];
  }
  std::size_t home_of(std::size_t group) const { return options_.homes.empty() ? group : options_.homes[group]; }
  bool is_last(std::size_t group) const { return received_[group] + 1 == options_.contributions[group]; }
  bool on_device(offload::ShardId shard) const { return store_.device_address(shard) != nullptr; }
  // Where a rank's own contributions go.
  offload::ShardId arrival_home(std::size_t group) const {
    return shards_[group].local_grad.value_or(shards_[group].grad);
  }
  bool sums_on_device(std::size_t group) const;
  void sum_on_device(std::size_t group, TensorSpan flat, const DeviceSlots::Lease& lease);
  enum class Arrival : std::uint8_t { Overwrites, IsAdded };
  // Those below return when `flat` and `values` are no longer used.
  Event send(std::size_t group, TensorSpan flat, Arrival arrival);
  Event send_rows(std::size_t group, TensorSpan flat, Arrival arrival);
  // The part of `flat` that this rank keeps, summed over the ranks by the comm stream.
  TensorSpan summed_over_ranks(std::size_t group, TensorSpan flat);
  void reduce_local_sum(std::size_t group);
  // `last`: nothing is added to it any more.
  Event to_home(std::size_t group, offload::ShardId home, TensorSpan values, Arrival arrival, bool last);
  void to_device_home(std::size_t group, offload::ShardId home, TensorSpan values, Arrival arrival);
  void to_host_home(std::size_t group, offload::ShardId home, TensorSpan values, Arrival arrival, bool last);
  TensorSpan stage(TensorSpan shard, std::size_t slot);
  Event on_adder(offload::Pin pin, std::function<void()> work);
  void take_statistics(std::size_t group);

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
  std::vector<std::size_t> received_;            // contributions of this step, per group
  std::vector<DeviceSlots::Lease> accumulator_;  // per group, while its first contributions are summed
  std::vector<std::vector<Event>> arriving_;     // per group: ends of the contributions of this step
  std::vector<Event> complete_;                  // per group
  std::vector<std::vector<double>> sums_;        // per group: of its blocks; written before complete_, read after it
  std::vector<Event> home_free_;                 // per group that owns a home: when it may be overwritten
  std::vector<Event> staging_free_;              // per staging slot: likewise
  std::size_t next_staging_ = 0;
};

}  // namespace strata::zero
