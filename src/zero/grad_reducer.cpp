#include "zero/grad_reducer.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "core/bytes.h"
#include "core/error.h"

namespace strata::zero {

GradReducer::GradReducer(std::vector<const FlatLayout*> layouts, std::vector<GroupShards> shards, Options options,
                         offload::ShardStore& store, DeviceSlots& slots, SlotPool* staging, Communicator& comm,
                         Streams streams, Executor& adder, ShardMath& host_math, ShardMath& device_math,
                         LinkCounters& counters)
    : layouts_(std::move(layouts)),
      shards_(std::move(shards)),
      options_(std::move(options)),
      store_(store),
      slots_(slots),
      staging_(staging),
      comm_(comm),
      streams_(streams),
      adder_(adder),
      host_math_(host_math),
      device_math_(device_math),
      counters_(counters),
      received_(layouts_.size(), 0),
      accumulator_(layouts_.size()),
      arriving_(layouts_.size()),
      complete_(layouts_.size()),
      sums_(layouts_.size()),
      home_free_(layouts_.size()),
      staging_free_(staging != nullptr ? staging->slots() : 0) {
  STRATA_EXPECTS(options_.contributions.size() == layouts_.size(), "one contribution count per group");
  STRATA_EXPECTS(options_.summed_first.empty() || options_.summed_first.size() == layouts_.size(),
                 "one count of contributions summed on the device per group");
  STRATA_EXPECTS(options_.homes.empty() || options_.homes.size() == layouts_.size(), "one home per group");
}

GradReducer::~GradReducer() {
  for (std::size_t g = 0; g < complete_.size(); ++g) {
    for (const Event& event : arriving_[g]) (void)event.wait_noexcept();
    (void)complete_[g].wait_noexcept();
  }
}

DeviceSlots::Lease GradReducer::acquire(std::size_t group) {
  DeviceSlots::Lease lease = slots_.acquire(layouts_[group]->numel() * bytes_of(options_.grad_dtype));
  streams_.compute.wait(lease.free);
  return lease;
}

void GradReducer::reduce(std::size_t group, const DeviceSlots::Lease& lease) {
  STRATA_EXPECTS(received_[group] < options_.contributions[group], "more contributions than announced");
  const TensorSpan flat{lease.data, options_.grad_dtype, layouts_[group]->numel()};
  streams_.comm.wait(streams_.compute.record());
  if (sums_on_device(group)) {
    sum_on_device(group, flat, lease);
  } else {
    slots_.release(lease, send(group, flat, received_[group] == 0 ? Arrival::Overwrites : Arrival::IsAdded));
  }
  if (++received_[group] == options_.contributions[group]) take_statistics(group);
}

// A home on the device holds the sum itself, unless it is narrower than the sum or gets what ranks have added up.
bool GradReducer::sums_on_device(std::size_t group) const {
  if (options_.order == Options::Order::ByMicroBatch || received_[group] >= summed_first(group)) return false;
  const offload::ShardId home = arrival_home(group);
  const bool takes_contributions = comm_.world() == 1 || shards_[group].local_grad;
  const bool home_sums = takes_contributions && on_device(home) && store_.spec(home).dtype == DType::F32;
  return !home_sums && summed_first(group) > 1;
}

void GradReducer::sum_on_device(std::size_t group, TensorSpan flat, const DeviceSlots::Lease& lease) {
  STRATA_EXPECTS(options_.accumulators != nullptr, "sums on the device need accumulators");
  const bool first = received_[group] == 0;
  DeviceSlots::Lease& sum = accumulator_[group];
  if (first) {
    sum = options_.accumulators->acquire(flat.numel * bytes_of(DType::F32));
    streams_.comm.wait(sum.free);
  }
  const TensorSpan total{sum.data, DType::F32, flat.numel};
  streams_.comm.launch(
      [math = &device_math_, total, flat, first] { first ? math->cast(total, flat) : math->accumulate(total, flat); });
  if (received_[group] + 1 < summed_first(group)) {
    slots_.release(lease, streams_.comm.record());
    return;
  }
  // It travels in the home's type; the other one is done with before.
  const bool narrow = store_.spec(arrival_home(group)).dtype != DType::F32;
  if (narrow) streams_.comm.launch([math = &device_math_, total, flat] { math->cast(flat, total); });
  const Event summed = streams_.comm.record();
  const Event sent = send(group, narrow ? flat : total, Arrival::Overwrites);
  slots_.release(lease, narrow ? sent : summed);
  options_.accumulators->release(sum, narrow ? summed : sent);
}

Event GradReducer::send(std::size_t group, TensorSpan flat, Arrival arrival) {
  if (options_.order == Options::Order::ByMicroBatch && comm_.world() > 1) return send_rows(group, flat, arrival);
  if (!shards_[group].local_grad) {
    return to_home(group, shards_[group].grad, summed_over_ranks(group, flat), arrival, is_last(group));
  }
  const Event sent = to_home(group, *shards_[group].local_grad, flat, arrival, false);
  if (is_last(group)) reduce_local_sum(group);
  return sent;
}

Event GradReducer::send_rows(std::size_t group, TensorSpan flat, Arrival arrival) {
  comm_.all_to_all(streams_.comm, flat);
  const std::size_t row = layouts_[group]->shard_numel();
  Event sent;
  for (std::size_t r = 0; r < comm_.world(); ++r) {
    const bool last = is_last(group) && r + 1 == comm_.world();
    sent = to_home(group, shards_[group].grad, flat.subspan(r * row, row), r == 0 ? arrival : Arrival::IsAdded, last);
  }
  return sent;
}

TensorSpan GradReducer::summed_over_ranks(std::size_t group, TensorSpan flat) {
  if (comm_.world() == 1) return flat;
  comm_.reduce_scatter(streams_.comm, flat);
  if (!shards_[group].partition.states) {
    comm_.all_gather(streams_.comm, flat);
    return flat;
  }
  return flat.subspan(shards_[group].first, layouts_[group]->shard_numel());
}

// All contributions of this rank are on their way to local_grad.
void GradReducer::reduce_local_sum(std::size_t group) {
  const offload::ShardId local = *shards_[group].local_grad;
  const offload::ShardSpec& spec = store_.spec(local);
  if (std::byte* const home = store_.device_address(local)) {
    const TensorSpan sum = summed_over_ranks(group, {home, spec.dtype, spec.numel});
    // Where the gradient's home is a part of this one, the sum is there already.
    if (store_.device_address(shards_[group].grad) == sum.data) {
      arriving_[group].push_back(streams_.comm.record());
    } else {
      (void)to_home(group, shards_[group].grad, sum, Arrival::Overwrites, true);
    }
    return;
  }
  STRATA_EXPECTS(options_.accumulators != nullptr, "local sums in host memory travel through accumulators");
  const DeviceSlots::Lease lease = options_.accumulators->acquire(spec.numel * bytes_of(DType::F32));
  streams_.comm.wait(lease.free);
  for (const Event& arrived : arriving_[group]) streams_.comm.wait(arrived);
  const TensorSpan flat{lease.data, spec.dtype, spec.numel};
  for (std::uint32_t p = 0; p < store_.pieces(local); ++p) {
    const offload::PieceRange range = store_.range({local, p});
    const offload::Pin pin = store_.acquire({local, p}, offload::Access::Read);  // not paged
    streams_.comm.copy(flat.subspan(range.first, range.numel).data, pin.bytes().data(), pin.bytes().size());
  }
  counters_.to_device += flat.bytes();
  const TensorSpan sum = summed_over_ranks(group, flat);
  options_.accumulators->release(lease, to_home(group, shards_[group].grad, sum, Arrival::Overwrites, true));
}

Event GradReducer::to_home(std::size_t group, offload::ShardId home, TensorSpan values, Arrival arrival, bool last) {
  if (on_device(home)) {
    to_device_home(group, home, values, arrival);
    return streams_.comm.record();
  }
  streams_.copy_out.wait(streams_.comm.record());
  to_host_home(group, home, values, arrival, last);
  return streams_.copy_out.record();
}

void GradReducer::to_device_home(std::size_t group, offload::ShardId id, TensorSpan values, Arrival arrival) {
  const TensorSpan home{store_.device_address(id), store_.spec(id).dtype, values.numel};
  const bool first = arrival == Arrival::Overwrites;
  if (first) streams_.comm.wait(home_free_[home_of(group)]);
  streams_.comm.launch([math = &device_math_, home, values, first] {
    first ? math->cast(home, values) : math->accumulate(home, values);
  });
  arriving_[group].push_back(streams_.comm.record());
}

void GradReducer::to_host_home(std::size_t group, offload::ShardId id, TensorSpan values, Arrival arrival, bool last) {
  const DType home_dtype = store_.spec(id).dtype;
  const bool first = arrival == Arrival::Overwrites;
  const bool copied = first && home_dtype == values.dtype;
  const Event home_free = first ? home_free_[home_of(group)] : Event();
  counters_.to_host += values.bytes();
  std::vector<double>& sums = sums_[group];
  const auto blocks = [&](std::uint32_t p) { return ceil_div(store_.range({id, p}).numel, ShardMath::kNormBlock); };
  if (last) {
    std::size_t all = 0;
    for (std::uint32_t p = 0; p < store_.pieces(id); ++p) all += blocks(p);
    sums.assign(all, 0);
  }
  std::size_t block = 0;
  for (std::uint32_t p = 0; p < store_.pieces(id); ++p) {
    const offload::PieceRange range = store_.range({id, p});
    offload::Pin pin = store_.acquire({id, p}, first ? offload::Access::Write : offload::Access::ReadWrite);
    const Event ready = pin.ready();
    const TensorSpan home{pin.bytes().data(), home_dtype, range.numel};
    const TensorSpan piece = values.subspan(range.first, range.numel);
    std::function<void()> add, sum_squares;
    if (last) {
      sum_squares = [math = &host_math_, home, squares = std::span(sums).subspan(block, blocks(p))] {
        math->block_sums_of_squares(home, squares);
      };
      block += blocks(p);
    }
    const std::size_t slot = next_staging_;
    // Not on the adder's thread: what the home waits for may need that thread first.
    streams_.copy_out.wait(home_free);
    if (copied) {
      streams_.copy_out.wait(ready);
      streams_.copy_out.copy(home.data, piece.data, piece.bytes());
    } else {
      add = [math = &host_math_, home, staged = stage(piece, slot), first, ready] {
        ready.wait();
        first ? math->cast(home, staged) : math->accumulate(home, staged);
      };
    }
    if (add == nullptr && sum_squares == nullptr) {
      arriving_[group].push_back(streams_.copy_out.record());
      pin.release_after(arriving_[group].back());
      continue;
    }
    arriving_[group].push_back(on_adder(std::move(pin), [add, sum_squares] {
      if (add) add();
      if (sum_squares) sum_squares();
    }));
    if (!copied) staging_free_[slot] = arriving_[group].back();
  }
}

// Copies `shard` to a staging slot.
TensorSpan GradReducer::stage(TensorSpan shard, std::size_t slot) {
  STRATA_EXPECTS(staging_ != nullptr, "these gradients need staging");
  next_staging_ = (slot + 1) % staging_->slots();
  staging_free_[slot].wait();  // bounded by the additions already queued: nothing else holds the slot
  const TensorSpan staged{staging_->slot(slot).data(), shard.dtype, shard.numel};
  streams_.copy_out.copy(staged.data, shard.data, shard.bytes());
  return staged;
}

// Runs `work` on the adder's thread once what copy_out was given so far is done, then ends the pin.
Event GradReducer::on_adder(offload::Pin pin, std::function<void()> work) {
  auto done = std::make_shared<EventSource>();
  done->submit();
  const Event event = done->event();
  auto held = std::make_shared<offload::Pin>(std::move(pin));
  streams_.copy_out.record().then(adder_, [work = std::move(work), done, held](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
      work();
      held->release();
      done->complete();
    } catch (...) {
      held->release();
      done->fail(std::current_exception());
    }
  });
  return event;
}

// A home on the device is summed by the stream that filled it; others have been, piece by piece. Whether the sums are
// finite is looked at on the adder's thread, so that the caller can go on.
void GradReducer::take_statistics(std::size_t group) {
  const offload::ShardId id = shards_[group].grad;
  if (std::byte* const device_home = store_.device_address(id)) {
    const TensorSpan home{device_home, store_.spec(id).dtype, store_.spec(id).numel};
    sums_[group].assign(ceil_div(home.numel, ShardMath::kNormBlock), 0);
    streams_.comm.launch([this, group, home] { device_math_.block_sums_of_squares(home, sums_[group]); });
    arriving_[group].push_back(streams_.comm.record());
  }
  auto done = std::make_shared<EventSource>();
  done->submit();
  complete_[group] = done->event();
  home_free_[home_of(group)] = complete_[group];
  when_all(arriving_[group]).then(adder_, [this, group, done](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
      const auto finite = [](double sum) { return std::isfinite(sum); };
      if (options_.not_finite == Options::NotFinite::Fails && !std::ranges::all_of(sums_[group], finite)) {
        throw DataError("the gradient of " + layouts_[group]->group().name +
                        " is not finite, and updates have begun: continue from the last checkpoint, with "
                        "strata.delay_update: true if such steps shall be skipped");
      }
      done->complete();
    } catch (...) {
      done->fail(std::current_exception());
    }
  });
  arriving_[group].clear();
}

void GradReducer::in_use_until(std::size_t group, const Event& done) {
  home_free_[home_of(group)] = done;
}

const Event& GradReducer::complete(std::size_t group) const {
  STRATA_EXPECTS(received_[group] == options_.contributions[group],
                 "not all contributions were reduced: " + layouts_[group]->group().name);
  return complete_[group];
}

void GradReducer::finish() {
  for (std::size_t g = 0; g < received_.size(); ++g) {
    STRATA_EXPECTS(received_[g] == options_.contributions[g],
                   "a group missed a contribution: " + layouts_[g]->group().name);
  }
  // Backwards, so that a gradient that is not finite is blamed on the layer where that began.
  for (std::size_t g = received_.size(); g-- > 0;) complete_[g].wait();
  std::fill(received_.begin(), received_.end(), 0);
}

double GradReducer::sum_of_squares() {
  // Here and not at construction: gradients may travel in smaller pieces when nobody asks for their norm.
  STRATA_EXPECTS(store_.piece_numel(DType::F32) % ShardMath::kNormBlock == 0,
                 "slots of " + std::to_string(store_.piece_numel(DType::F32)) +
                     " fp32 elements cut the norm's blocks: make them a multiple of " +
                     std::to_string(ShardMath::kNormBlock));
  std::vector<double> mine;  // of the rows
  for (std::size_t g = 0; g < layouts_.size(); ++g) {
    if (options_.contributions[g] == 0) continue;  // frozen: no gradient, and no sums below
    const offload::ShardSpec& spec = store_.spec(shards_[g].grad);
    STRATA_EXPECTS(spec.host_numel == spec.numel || spec.host_numel % ShardMath::kNormBlock == 0,
                   "the host share of " + spec.name + " cuts the norm's blocks");
    if (shards_[g].partition.states) mine.insert(mine.end(), sums_[g].begin(), sums_[g].end());
  }
  // Of all ranks, which hold equally many: added up block by block in the order of the model, so that the norm does not
  // depend on the number of ranks.
  std::vector<double> all(mine.size() * comm_.world());
  std::copy(mine.begin(), mine.end(), all.begin() + static_cast<std::ptrdiff_t>(mine.size() * comm_.rank()));
  comm_.all_gather_values(all);
  double total = 0;
  std::size_t row = 0;
  for (std::size_t g = 0; g < layouts_.size(); ++g) {
    const bool divided = shards_[g].partition.states;
    for (std::size_t r = 0; r < (divided ? comm_.world() : 1); ++r) {
      for (std::size_t b = 0; b < sums_[g].size(); ++b) {
        total += divided ? all[r * mine.size() + row + b] : sums_[g][b];
      }
    }
    if (divided) row += sums_[g].size();
  }
  return total;
}

}  // namespace strata::zero
