#include "zero/optimizer_pipeline.h"

#include <algorithm>

#include "core/error.h"

namespace strata::zero {
namespace {

constexpr std::size_t kParam = UpdateShards::kParam;
constexpr std::size_t kGrad = UpdateShards::kGrad;
constexpr std::size_t kFirstState = UpdateShards::kFirstState;

// A page that is only written starts with the bytes of whatever was in its slot before, and optimizers leave padding
// alone: see [Note: flat padding].
void zero_padding(const TensorSpan& values, std::span<const Segment> segments) {
  std::size_t end = 0;
  const auto zero_until = [&](std::size_t next) {
    const TensorSpan gap = values.subspan(end, next - end);
    std::fill_n(gap.data, gap.bytes(), std::byte{0});
  };
  for (const Segment& segment : segments) {
    zero_until(segment.offset);
    end = segment.offset + segment.numel;
  }
  zero_until(values.numel);
}

}  // namespace

void walk_update(const offload::ShardStore& store, const UpdateShards& shards,
                 const std::function<void(std::size_t, offload::PieceId)>& on_piece,
                 const std::function<void(std::uint64_t, std::uint64_t)>& on_chunk) {
  const std::uint64_t numel = store.spec(shards.param).numel;
  for (std::uint64_t first = 0; first < numel;) {
    std::uint64_t end = numel;
    for (std::size_t i = 0; i < shards.count(); ++i) {
      const std::uint64_t per_value = shards.per_value(i);
      const offload::PieceId piece = store.piece_at(shards.shard(i), first / per_value);
      const offload::PieceRange range = store.range(piece);
      if (first == range.first * per_value) on_piece(i, piece);
      end = std::min(end, (range.first + range.numel) * per_value);
    }
    on_chunk(first, end - first);
    first = end;
  }
}

OptimizerPipeline::OptimizerPipeline(std::vector<const FlatLayout*> layouts, std::vector<UpdateShards> shards,
                                     UpdateSite site, offload::ShardStore& store, ShardOptimizer& host_optimizer,
                                     ShardOptimizer& device_optimizer, const Buffer* device_staging, std::size_t rank,
                                     Stream& stream, Executor& updates, LinkCounters& counters, BusyTimes& times,
                                     offload::Lane lane)
    : layouts_(std::move(layouts)),
      shards_(std::move(shards)),
      site_(site),
      store_(store),
      host_optimizer_(host_optimizer),
      device_optimizer_(device_optimizer),
      device_staging_(device_staging),
      rank_(rank),
      stream_(stream),
      updates_(updates),
      counters_(counters),
      times_(times),
      lane_(lane),
      updated_pieces_(layouts_.size()) {}

OptimizerPipeline::Pieces::Pieces(std::uint32_t numel) : sources_(numel) {
  for (EventSource& source : sources_) source.submit();
}

std::vector<Event> OptimizerPipeline::Pieces::events() const {
  std::vector<Event> events;
  for (const EventSource& source : sources_) events.push_back(source.event());
  return events;
}

void OptimizerPipeline::Pieces::complete_before(std::uint32_t piece) {
  while (complete_ < piece) sources_[complete_++].complete();
}

void OptimizerPipeline::Pieces::complete_all() {
  complete_before(static_cast<std::uint32_t>(sources_.size()));
}

void OptimizerPipeline::Pieces::fail(const std::exception_ptr& error) {
  while (complete_ < sources_.size()) sources_[complete_++].fail(error);
}

std::vector<Event> OptimizerPipeline::start(const StepContext& context) {
  updates_.post([this] { failure_ = nullptr; });
  std::vector<Event> events;
  for (std::size_t group = 0; group < layouts_.size(); ++group) events.push_back(start(group, context, Event()));
  return events;
}

Event OptimizerPipeline::start(std::size_t group, const StepContext& context, const Event& gradient) {
  auto done = std::make_shared<EventSource>();
  done->submit();
  auto pieces = std::make_shared<Pieces>(store_.pieces(shards_[group].param));
  updated_pieces_[group] = pieces->events();
  updates_.post([this, group, context, gradient, done, pieces] {
    try {
      if (failure_) std::rethrow_exception(failure_);
      gradient.wait();
      update(group, context, *pieces);
      done->complete();
    } catch (...) {
      failure_ = std::current_exception();
      pieces->fail(failure_);
      done->fail(failure_);
    }
  });
  return done->event();
}

void OptimizerPipeline::step(const StepContext& context) {
  const std::vector<Event> events = start(context);
  when_all(events).wait();
}

void OptimizerPipeline::update(std::size_t group, const StepContext& context, Pieces& pieces) {
  if (site_ == UpdateSite::Host) {
    step_on_host(group, context, pieces);
  } else {
    step_on_device(group, context, pieces);
  }
  pieces.complete_all();
  // Parameters at home on the device are written through the link: the next forward reads them there.
  store_.drain_uncached();
}

std::vector<Segment> OptimizerPipeline::segments_of(std::size_t group, std::uint64_t first, std::uint64_t numel) const {
  return layouts_[group]->segments(rank_ * layouts_[group]->shard_numel() + first, numel);
}

// As ShardViews::first_element.
std::uint64_t OptimizerPipeline::element_index(std::size_t group, std::uint64_t first) const {
  return (static_cast<std::uint64_t>(group) << 40) + rank_ * layouts_[group]->shard_numel() + first;
}

void OptimizerPipeline::step_on_host(std::size_t group, const StepContext& context, Pieces& updated) {
  const UpdateShards& shards = shards_[group];
  std::vector<offload::Pin> pins(shards.count());
  std::vector<std::uint64_t> piece_first(shards.count());
  const auto on_piece = [&](std::size_t position, offload::PieceId piece) {
    pins[position].release();
    if (position == kParam) updated.complete_before(piece.piece);
    pins[position] = store_.acquire(piece, shards.access(position), lane_);
    piece_first[position] = store_.range(piece).first;
  };
  const auto on_chunk = [&](std::uint64_t first, std::uint64_t numel) {
    std::vector<TensorSpan> spans;
    for (std::size_t i = 0; i < shards.count(); ++i) {
      const DType dtype = store_.spec(shards.shard(i)).dtype;
      const std::size_t per_value = shards.per_value(i);
      spans.push_back(TensorSpan{pins[i].wait().data(), dtype, store_.piece_numel(dtype)}.subspan(
          first / per_value - piece_first[i], numel / per_value));
    }
    const std::vector<Segment> segments = segments_of(group, first, numel);
    const Stopwatch watch(times_, Work::Update, group);
    host_optimizer_
        .step(context, {spans[kParam], spans[kGrad], std::span(spans).subspan(kFirstState), segments,
                        element_index(group, first)})
        .wait();
    if (!reads(shards.param_access)) zero_padding(spans[kParam], segments);
  };
  walk_update(store_, shards, on_piece, on_chunk);
}

// States are at home on the device; gradient and parameter come to them, and the new parameter goes back to its home.
void OptimizerPipeline::step_on_device(std::size_t group, const StepContext& context, Pieces& updated) {
  const UpdateShards& shards = shards_[group];
  std::vector<offload::Pin> pins(shards.count());
  std::vector<std::uint64_t> piece_first(shards.count());
  const auto on_piece = [&](std::size_t position, offload::PieceId piece) {
    pins[position].release();
    if (position == kParam) updated.complete_before(piece.piece);
    if (store_.device_address(piece.shard) != nullptr) return;
    pins[position] = store_.acquire(piece, shards.access(position), lane_);
    piece_first[position] = store_.range(piece).first;
  };
  const auto on_chunk = [&](std::uint64_t first, std::uint64_t numel) {
    std::vector<TensorSpan> on_device;
    std::vector<TensorSpan> on_host(shards.count());
    for (std::size_t i = 0; i < shards.count(); ++i) {
      const DType dtype = store_.spec(shards.shard(i)).dtype;
      const std::size_t per_value = shards.per_value(i);
      if (std::byte* home = store_.device_address(shards.shard(i))) {
        on_device.push_back(
            TensorSpan{home, dtype, store_.spec(shards.shard(i)).numel}.subspan(first / per_value, numel / per_value));
        continue;
      }
      on_host[i] =
          TensorSpan{pins[i].wait().data(), dtype, store_.piece_numel(dtype)}.subspan(first - piece_first[i], numel);
      STRATA_EXPECTS(device_staging_ != nullptr && i < kFirstState, "states are not at home on the device");
      on_device.push_back({device_staging_[i].data(), dtype, numel});
    }
    update_on_device(group, context, on_device, on_host, numel, first);
  };
  walk_update(store_, shards, on_piece, on_chunk);
}

void OptimizerPipeline::update_on_device(std::size_t group, const StepContext& context,
                                         std::vector<TensorSpan>& on_device, std::vector<TensorSpan>& on_host,
                                         std::size_t numel, std::uint64_t first) {
  const UpdateShards& shards = shards_[group];
  const Stopwatch watch(times_, Work::Update, group);
  for (const std::size_t i : {kParam, kGrad}) {
    if (on_host[i].data == nullptr || !reads(shards.access(i))) continue;
    stream_.copy(on_device[i].data, on_host[i].data, on_host[i].bytes());
    counters_.to_device += on_host[i].bytes();
  }
  const std::vector<Segment> segments = segments_of(group, first, numel);
  stream_.launch([&] {
    device_optimizer_
        .step(context, {on_device[kParam], on_device[kGrad], std::span(on_device).subspan(kFirstState), segments,
                        element_index(group, first)})
        .wait();
  });
  if (on_host[kParam].data != nullptr) {
    stream_.copy(on_host[kParam].data, on_device[kParam].data, on_host[kParam].bytes());
    counters_.to_host += on_host[kParam].bytes();
  }
  stream_.record().wait();
  if (on_host[kParam].data != nullptr && !reads(shards.param_access)) zero_padding(on_host[kParam], segments);
}

}  // namespace strata::zero
