// ParamGroup: parameters that are gathered together. Knows storages, not layers: the layer runner is one driver, module
// hooks over any model can be another.
#pragma once

#include <optional>

#include "zero/context.h"
#include "zero/flat_layout.h"
#include "zero/layer_compute.h"

namespace strata::zero {

// [Note: group states]
// Sharded:   only this rank's shard exists, on its home tier. Bound storages point to nothing.
// Gathering: a device buffer is filling (copies and all-gather are queued). Storages point to nothing yet.
// Unsharded: work queued on the compute stream from now on sees the storages bound to the full parameters.
//
// Caller thread only. Nothing here waits for the device; unshard() blocks while an update of the group is under way
// (update_until), until the buffer that it gets is free, and while the store has no free slot.
class ParamGroup {
 public:
  enum class State : std::uint8_t { Sharded, Gathering, Unsharded };

  // References must outlive the group. Where the whole parameter is at home on the device the storages view the home
  // itself. `comm` gathers this group's parameters; `node`: the ranks of GroupShards::node_param, null without it.
  ParamGroup(const FlatLayout& layout, DType dtype, const GroupShards& shards, StorageBinding& binding,
             offload::ShardStore& store, DeviceSlots& gather, Communicator& comm, Streams streams,
             LinkCounters& counters, Communicator* node = nullptr);

  State state() const { return state_; }
  const FlatLayout& layout() const { return layout_; }
  std::uint64_t full_bytes() const { return layout_.numel() * bytes_of(dtype_); }
  // All-gathers so far among all ranks, and among those of the node.
  std::uint64_t gathers() const { return gathers_; }
  std::uint64_t node_gathers() const { return node_gathers_; }

  // The group's parameters are being updated until `updated` completes; said of every update. Requires: Sharded.
  // `pieces`: where not empty, each completes when that piece of the parameter has its new value, so that its copy need
  // not wait for the others.
  void update_until(Event updated, std::vector<Event> pieces = {});
  // Blocks until then. Throws: what the update failed with.
  void wait_for_update() const { updated_.wait(); }
  // Sharded to Gathering: queues the copies of this rank's shard and the all-gather. A rank that keeps the whole
  // parameter, or its node's part of it, gathers once after each update and keeps what it got. Throws: what the update
  // failed with.
  void unshard();
  // Gathering to Unsharded: the compute stream waits for the gather and binds the storages.
  void wait_for_unshard();
  // Unsharded to Sharded, after what is queued on the compute stream so far. The buffer is reused in stream order.
  void reshard();

 private:
  // Pieces of `shard` one after the other to `destination`.
  // Whether rows of other ranks are kept from one gather to the next.
  bool keeps_rows() const { return (shards_.whole_param && shards_.partition.states) || shards_.node_param; }
  void copy_in(offload::ShardId shard, std::byte* destination);
  // Where the whole parameter is at home on the device; else in a device slot.
  void gather_in_place(std::byte* home);
  void gather_into_slot();
  void take_what_was_kept();
  void keep_rows();
  void all_gather(Communicator& comm);
  // Copies elements [first, end) of what was gathered to the home of `shard`, which begins at `shard_first`.
  void keep(offload::ShardId shard, std::size_t shard_first, std::size_t first, std::size_t end);
  FlatRange node_range() const;

  const FlatLayout& layout_;
  const DType dtype_;
  const GroupShards shards_;
  StorageBinding& binding_;
  offload::ShardStore& store_;
  DeviceSlots& gather_;
  Communicator& comm_;
  Streams streams_;
  LinkCounters& counters_;
  State state_ = State::Sharded;
  std::byte* full_ = nullptr;
  std::optional<DeviceSlots::Lease> lease_;  // empty while the storages view the home
  Event gathered_;
  Communicator* const node_;
  bool stale_;      // what is kept of other ranks' rows is from before the last update
  Event kept_;      // these rows are at home
  Event last_use_;  // by the compute stream, of a home on the device
  std::vector<Event> updated_pieces_;
  Event updated_;
  std::uint64_t gathers_ = 0;
  std::uint64_t node_gathers_ = 0;
};

}  // namespace strata::zero
