#include "zero/param_group.h"

#include "core/error.h"

namespace strata::zero {

ParamGroup::ParamGroup(const FlatLayout& layout, DType dtype, offload::ShardId param, StorageBinding& binding,
                       offload::ShardStore& store, DeviceSlots& gather, Communicator& comm, Streams streams,
                       LinkCounters& counters)
    : layout_(layout),
      dtype_(dtype),
      param_(param),
      binding_(binding),
      store_(store),
      gather_(gather),
      comm_(comm),
      streams_(streams),
      counters_(counters) {}

void ParamGroup::update_until(Event updated, std::vector<Event> pieces) {
  STRATA_EXPECTS(state_ == State::Sharded, "update of a group that is not sharded");
  STRATA_EXPECTS(pieces.empty() || pieces.size() == store_.pieces(param_), "one event per piece of the parameter");
  updated_ = std::move(updated);
  updated_pieces_ = std::move(pieces);
}

void ParamGroup::unshard() {
  STRATA_EXPECTS(state_ == State::Sharded, "unshard of a group that is not sharded");
  std::byte* home = store_.device_address(param_);
  if (home != nullptr || updated_pieces_.empty()) wait_for_update();
  updated_ = Event();
  ++gathers_;
  if (home != nullptr && comm_.world() == 1) {
    full_ = home;
    gathered_ = Event();
  } else {
    lease_ = gather_.acquire(full_bytes());
    full_ = lease_->data;
    // Pages pinned for a copy that cannot start yet would keep others out of memory.
    lease_->free.wait();
    copy_shard_to(full_ + comm_.rank() * layout_.shard_numel() * bytes_of(dtype_));
    updated_pieces_.clear();
    streams_.comm.wait(streams_.copy_in.record());
    comm_.all_gather(streams_.comm, {full_, dtype_, layout_.numel()});
    gathered_ = streams_.comm.record();
  }
  state_ = State::Gathering;
}

void ParamGroup::copy_shard_to(std::byte* row) {
  const std::size_t bytes = layout_.shard_numel() * bytes_of(dtype_);
  if (const std::byte* home = store_.device_address(param_)) {
    streams_.copy_in.copy(row, home, bytes);
    return;
  }
  for (std::uint32_t piece = 0; piece < store_.pieces(param_); ++piece) {
    // Piece by piece, so that few pages of new weights wait in memory: one visit of each, however few slots there are.
    if (!updated_pieces_.empty()) updated_pieces_[piece].wait();
    offload::Pin pin = store_.acquire({param_, piece}, offload::Access::Read);
    streams_.copy_in.wait(pin.ready());
    std::byte* destination = row + store_.range({param_, piece}).first * bytes_of(dtype_);
    streams_.copy_in.copy(destination, pin.bytes().data(), pin.bytes().size());
    pin.release_after(streams_.copy_in.record());
  }
  counters_.to_device += bytes;
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
    gather_.release(*lease_, streams_.compute.record());
    lease_.reset();
  }
  full_ = nullptr;
  state_ = State::Sharded;
}

}  // namespace strata::zero
