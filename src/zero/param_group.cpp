#include "zero/param_group.h"

#include <algorithm>
#include <array>

#include "core/error.h"

namespace strata::zero {

ParamGroup::ParamGroup(const FlatLayout& layout, DType dtype, const GroupShards& shards, StorageBinding& binding,
                       offload::ShardStore& store, DeviceSlots& gather, Communicator& comm, Streams streams,
                       LinkCounters& counters)
    : layout_(layout),
      dtype_(dtype),
      shards_(shards),
      binding_(binding),
      store_(store),
      gather_(gather),
      comm_(comm),
      streams_(streams),
      counters_(counters),
      stale_(shards.whole_param && shards.partition.states) {}

void ParamGroup::update_until(Event updated, std::vector<Event> pieces) {
  STRATA_EXPECTS(state_ == State::Sharded, "update of a group that is not sharded");
  STRATA_EXPECTS(pieces.empty() || pieces.size() == store_.pieces(shards_.param),
                 "one event per piece of the parameter");
  updated_ = std::move(updated);
  updated_pieces_ = std::move(pieces);
  stale_ = shards_.whole_param && shards_.partition.states;
}

void ParamGroup::unshard() {
  STRATA_EXPECTS(state_ == State::Sharded, "unshard of a group that is not sharded");
  const bool whole = shards_.whole_param.has_value();
  std::byte* const home = store_.device_address(shards_.whole_param.value_or(shards_.param));
  if (home != nullptr || updated_pieces_.empty()) wait_for_update();
  updated_ = Event();
  if (!whole || stale_) ++gathers_;
  if (home != nullptr && (whole || comm_.world() == 1)) {
    full_ = home;
    if (stale_) {
      streams_.comm.wait(last_use_);
      all_gather();
    }
  } else {
    lease_ = gather_.acquire(full_bytes());
    full_ = lease_->data;
    // Pages pinned for a copy that cannot start yet would keep others out of memory.
    lease_->free.wait();
    if (whole && !stale_) {
      streams_.copy_in.wait(kept_);
      copy_in(*shards_.whole_param, full_);
      gathered_ = streams_.copy_in.record();
    } else {
      copy_in(shards_.param, full_ + shards_.first * bytes_of(dtype_));
      streams_.comm.wait(streams_.copy_in.record());
      all_gather();
      if (whole) keep_rows_of_others();
    }
    updated_pieces_.clear();
  }
  stale_ = false;
  state_ = State::Gathering;
}

void ParamGroup::all_gather() {
  comm_.all_gather(streams_.comm, {full_, dtype_, layout_.numel()});
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

void ParamGroup::keep_rows_of_others() {
  streams_.copy_out.wait(gathered_);
  const std::size_t own_end = shards_.first + layout_.shard_numel();
  for (std::uint32_t p = 0; p < store_.pieces(*shards_.whole_param); ++p) {
    const offload::PieceRange range = store_.range({*shards_.whole_param, p});
    const offload::Pin pin = store_.acquire({*shards_.whole_param, p}, offload::Access::Write);  // not paged
    const auto keep = [&](std::size_t begin, std::size_t end) {
      begin = std::max<std::size_t>(begin, range.first);
      end = std::min<std::size_t>(end, range.first + range.numel);
      if (begin >= end) return;
      const std::size_t bytes = (end - begin) * bytes_of(dtype_);
      std::byte* const home = pin.bytes().data() + (begin - range.first) * bytes_of(dtype_);
      streams_.copy_out.copy(home, full_ + begin * bytes_of(dtype_), bytes);
      counters_.to_host += bytes;
    };
    keep(0, shards_.first);
    keep(own_end, layout_.numel());
  }
  kept_ = streams_.copy_out.record();
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
