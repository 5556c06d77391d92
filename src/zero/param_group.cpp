#include "zero/param_group.h"

#include <algorithm>
#include <array>

#include "core/error.h"

namespace strata::zero {

ParamGroup::ParamGroup(const FlatLayout& layout, DType dtype, const GroupShards& shards, StorageBinding& binding,
                       offload::ShardStore& store, DeviceSlots& gather, Communicator& comm, Streams streams,
                       LinkCounters& counters, Communicator* node)
    : layout_(layout),
      dtype_(dtype),
      shards_(shards),
      binding_(binding),
      store_(store),
      gather_(gather),
      comm_(comm),
      streams_(streams),
      counters_(counters),
      node_(node),
      stale_(keeps_rows()) {
  STRATA_EXPECTS(!shards.node_param || (node != nullptr && layout.numel() % node->world() == 0),
                 "a second partition needs the ranks of the node");
}

void ParamGroup::update_until(Event updated, std::vector<Event> pieces) {
  STRATA_EXPECTS(state_ == State::Sharded, "update of a group that is not sharded");
  STRATA_EXPECTS(pieces.empty() || pieces.size() == store_.pieces(shards_.param),
                 "one event per piece of the parameter");
  updated_ = std::move(updated);
  updated_pieces_ = std::move(pieces);
  stale_ = keeps_rows();
}

void ParamGroup::unshard() {
  STRATA_EXPECTS(state_ == State::Sharded, "unshard of a group that is not sharded");
  std::byte* const home = store_.device_address(shards_.whole_param.value_or(shards_.param));
  if (home != nullptr || updated_pieces_.empty()) wait_for_update();
  updated_ = Event();
  if (home != nullptr && (shards_.whole_param || comm_.world() == 1)) {
    gather_in_place(home);
  } else {
    gather_into_slot();
  }
  stale_ = false;
  state_ = State::Gathering;
}

void ParamGroup::gather_in_place(std::byte* home) {
  full_ = home;
  if (stale_) {
    streams_.comm.wait(last_use_);
    all_gather(comm_);
  }
  gathers_ += !shards_.whole_param || stale_ ? 1 : 0;
}

void ParamGroup::gather_into_slot() {
  lease_ = gather_.acquire(full_bytes());
  full_ = lease_->data;
  // Pages pinned for a copy that cannot start yet would keep others out of memory.
  lease_->free.wait();
  const bool kept = !stale_ && (shards_.whole_param || shards_.node_param);
  if (kept) {
    take_what_was_kept();
  } else {
    copy_in(shards_.param, full_ + shards_.first * bytes_of(dtype_));
    streams_.comm.wait(streams_.copy_in.record());
    all_gather(comm_);
    ++gathers_;
    if (keeps_rows()) keep_rows();
  }
  updated_pieces_.clear();
}

void ParamGroup::take_what_was_kept() {
  streams_.copy_in.wait(kept_);
  if (shards_.whole_param) {
    copy_in(*shards_.whole_param, full_);
    gathered_ = streams_.copy_in.record();
    return;
  }
  copy_in(*shards_.node_param, full_ + node_range().first * bytes_of(dtype_));
  streams_.comm.wait(streams_.copy_in.record());
  all_gather(*node_);
  ++node_gathers_;
}

void ParamGroup::keep_rows() {
  if (shards_.whole_param) {
    keep(*shards_.whole_param, 0, 0, shards_.first);
    keep(*shards_.whole_param, 0, shards_.first + layout_.shard_numel(), layout_.numel());
  } else {
    const FlatRange part = node_range();
    keep(*shards_.node_param, part.first, part.first, part.first + part.numel);
  }
  kept_ = streams_.copy_out.record();
}

void ParamGroup::all_gather(Communicator& comm) {
  comm.all_gather(streams_.comm, {full_, dtype_, layout_.numel()});
  gathered_ = streams_.comm.record();
}

void ParamGroup::copy_in(offload::ShardId shard, std::byte* destination) {
  const offload::ShardSpec& spec = store_.spec(shard);
  if (const std::byte* home = store_.device_address(shard)) {
    streams_.copy_in.copy(destination, home, spec.numel * bytes_of(dtype_));
    return;
  }
  for (std::uint32_t piece = 0; piece < store_.pieces(shard); ++piece) {
    // Piece by piece, so that few pages of new weights wait in memory: one visit of each, however few slots there are.
    if (!updated_pieces_.empty()) updated_pieces_[piece].wait();
    offload::Pin pin = store_.acquire({shard, piece}, offload::Access::Read);
    streams_.copy_in.wait(pin.ready());
    std::byte* const to = destination + store_.range({shard, piece}).first * bytes_of(dtype_);
    streams_.copy_in.copy(to, pin.bytes().data(), pin.bytes().size());
    pin.release_after(streams_.copy_in.record());
  }
  counters_.to_device += spec.numel * bytes_of(dtype_);
}

FlatRange ParamGroup::node_range() const {
  const std::size_t part = layout_.numel() / node_->world();
  return {node_->rank() * part, part};
}

void ParamGroup::keep(offload::ShardId shard, std::size_t shard_first, std::size_t first, std::size_t end) {
  const std::size_t element = bytes_of(dtype_);
  streams_.copy_out.wait(gathered_);
  if (std::byte* const home = store_.device_address(shard)) {
    if (first < end) {
      streams_.copy_out.copy(home + (first - shard_first) * element, full_ + first * element, (end - first) * element);
    }
    return;
  }
  for (std::uint32_t p = 0; p < store_.pieces(shard); ++p) {
    const offload::PieceRange range = store_.range({shard, p});
    const std::size_t from = std::max<std::size_t>(first, shard_first + range.first);
    const std::size_t to = std::min<std::size_t>(end, shard_first + range.first + range.numel);
    if (from >= to) continue;
    const offload::Pin pin = store_.acquire({shard, p}, offload::Access::Write);  // not paged
    std::byte* const home = pin.bytes().data() + (from - shard_first - range.first) * element;
    streams_.copy_out.copy(home, full_ + from * element, (to - from) * element);
    counters_.to_host += (to - from) * element;
  }
}

void ParamGroup::wait_for_unshard() {
  STRATA_EXPECTS(state_ == State::Gathering, "wait_for_unshard without unshard");
  streams_.compute.wait(gathered_);
  streams_.compute.launch([binding = &binding_, data = full_] { binding->bind(data); });
  state_ = State::Unsharded;
}

void ParamGroup::reshard() {
  STRATA_EXPECTS(state_ == State::Unsharded, "reshard of a group that is not unsharded");
  streams_.compute.launch([binding = &binding_] { binding->unbind(); });
  if (lease_) {
    gather_.release(*lease_, when_all(std::array{streams_.compute.record(), kept_}));
    lease_.reset();
  } else if (shards_.whole_param) {
    last_use_ = streams_.compute.record();
  }
  full_ = nullptr;
  state_ = State::Sharded;
}

}  // namespace strata::zero
