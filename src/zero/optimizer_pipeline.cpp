#include "zero/optimizer_pipeline.h"

#include <algorithm>
#include <utility>

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
  const std::uint64_t numel = shards.frozen ? 0 : store.spec(shards.param).numel;
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

std::vector<UpdatePart> update_parts(const offload::ShardStore& store, const UpdateShards& shards) {
  std::vector<UpdatePart> parts;
  for (std::size_t i = 0; i < shards.count(); ++i) {
    const offload::ShardSpec& spec = store.spec(shards.shard(i));
    parts.push_back({spec.dtype, shards.per_value(i), shards.access(i), spec.home});
  }
  return parts;
}

UpdateWork update_work(const offload::ShardStore& store, const UpdateShards& shards) {
  if (shards.frozen) return {};
  std::vector<std::uint64_t> units;
  for (std::uint32_t p = 0; p < store.pieces(shards.param); ++p) units.push_back(store.range({shards.param, p}).numel);
  return update_work(update_parts(store, shards), std::move(units));
}

bool update_acquires(const offload::ShardStore& store, const UpdateShards& shards, std::size_t position,
                     offload::PieceId piece) {
  if (store.device_address(piece.shard) == nullptr) return true;
  const std::uint64_t per_value = shards.per_value(position);
  const offload::PieceRange range = store.range(piece);
  offload::PieceId unit = store.piece_at(shards.param, range.first * per_value);
  for (; unit.piece < store.pieces(shards.param); ++unit.piece) {
    if (store.range(unit).first >= (range.first + range.numel) * per_value) break;
    if (shards.site(unit) == UpdateSite::Host) return true;
  }
  return false;
}

OptimizerPipeline::OptimizerPipeline(std::vector<const FlatLayout*> layouts, std::vector<UpdateShards> shards,
                                     offload::ShardStore& store, ShardOptimizer& host_optimizer, DeviceUpdates* device,
                                     Executor& updates, BusyTimes& times, offload::Lane lane)
    : layouts_(std::move(layouts)),
      shards_(std::move(shards)),
      store_(store),
      host_optimizer_(host_optimizer),
      device_(device),
      updates_(updates),
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

void OptimizerPipeline::Pieces::end_before(const std::shared_ptr<Pieces>& pieces, std::uint32_t piece,
                                           const Event& until) {
  while (pieces->ended_ < piece) {
    EventSource& source = pieces->sources_[pieces->ended_++];
    until.on_complete(
        [pieces, &source](const std::exception_ptr& error) { error ? source.fail(error) : source.complete(); });
  }
}

void OptimizerPipeline::Pieces::fail(const std::exception_ptr& error) {
  while (ended_ < sources_.size()) sources_[ended_++].fail(error);
}

std::vector<Event> OptimizerPipeline::start(const StepContext& context) {
  updates_.post([this] { failure_ = nullptr; });
  std::vector<Event> events;
  for (std::size_t group = 0; group < layouts_.size(); ++group) events.push_back(start(group, context, Event()));
  return events;
}

Event OptimizerPipeline::start(std::size_t group, const StepContext& context, const Event& gradient) {
  if (shards_[group].frozen) return Event();
  auto done = std::make_shared<EventSource>();
  done->submit();
  auto pieces = std::make_shared<Pieces>(store_.pieces(shards_[group].param));
  updated_pieces_[group] = pieces->events();
  updates_.post([this, group, context, gradient, done, pieces] {
    try {
      if (failure_) std::rethrow_exception(failure_);
      gradient.wait();
      update(group, context, pieces).on_complete([done](const std::exception_ptr& error) {
        error ? done->fail(error) : done->complete();
      });
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

void OptimizerPipeline::Page::let_go() {
  pin.release_after(std::exchange(used_until, Event()));
}

Event OptimizerPipeline::update(std::size_t group, const StepContext& context, const std::shared_ptr<Pieces>& updated) {
  const UpdateShards& shards = shards_[group];
  std::vector<Page> pages(shards.count());
  const auto on_piece = [&](std::size_t position, offload::PieceId piece) {
    Page& page = pages[position];
    const Event until = page.used_until;
    page.let_go();
    if (position == kParam) Pieces::end_before(updated, piece.piece, until);
    if (!update_acquires(store_, shards, position, piece)) return;
    page.pin = store_.acquire(piece, shards.access(position), lane_);
    page.first = store_.range(piece).first;
  };
  const auto on_chunk = [&](std::uint64_t first, std::uint64_t numel) {
    if (shards.site(store_.piece_at(shards.param, first)) == UpdateSite::Host) {
      update_on_host(group, context, pages, first, numel);
    } else {
      update_on_device(group, context, pages, first, numel);
    }
  };
  try {
    walk_update(store_, shards, on_piece, on_chunk);
  } catch (...) {
    (void)last_on_device_.wait_noexcept();  // until then streams touch the pages
    throw;
  }
  const Event until = pages[kParam].used_until;
  for (Page& page : pages) page.let_go();
  Pieces::end_before(updated, store_.pieces(shards.param), until);
  // What is at home on the device and was updated on the host is written through the link: the next forward reads it
  // there.
  store_.drain_uncached();
  return last_on_device_;
}

std::vector<Segment> OptimizerPipeline::segments_of(std::size_t group, std::uint64_t first, std::uint64_t numel) const {
  return layouts_[group]->segments(shards_[group].first + first, numel);
}

// As ShardViews::first_element.
std::uint64_t OptimizerPipeline::element_index(std::size_t group, std::uint64_t first) const {
  return (static_cast<std::uint64_t>(group) << 40) + shards_[group].first + first;
}

TensorSpan OptimizerPipeline::in_page(const UpdateShards& shards, std::size_t position, const Page& page,
                                      std::uint64_t first, std::uint64_t numel) const {
  const DType dtype = store_.spec(shards.shard(position)).dtype;
  const std::size_t per_value = shards.per_value(position);
  return TensorSpan{page.pin.wait().data(), dtype, store_.piece_numel(dtype)}.subspan(first / per_value - page.first,
                                                                                      numel / per_value);
}

void OptimizerPipeline::update_on_host(std::size_t group, const StepContext& context, const std::vector<Page>& pages,
                                       std::uint64_t first, std::uint64_t numel) {
  const UpdateShards& shards = shards_[group];
  std::vector<TensorSpan> spans;
  for (std::size_t i = 0; i < shards.count(); ++i) spans.push_back(in_page(shards, i, pages[i], first, numel));
  const std::vector<Segment> segments = segments_of(group, first, numel);
  const Stopwatch watch(times_, Work::Update, group);
  host_optimizer_
      .step(context,
            {spans[kParam], spans[kGrad], std::span(spans).subspan(kFirstState), segments, element_index(group, first)})
      .wait();
  if (!reads(shards.param_access)) zero_padding(spans[kParam], segments);
}

void OptimizerPipeline::update_on_device(std::size_t group, const StepContext& context, std::vector<Page>& pages,
                                         std::uint64_t first, std::uint64_t numel) {
  STRATA_EXPECTS(device_ != nullptr, "this pipeline was made without updates on the device");
  const UpdateShards& shards = shards_[group];
  using Place = DeviceUpdates::Part::Place;
  DeviceUpdates::Chunk chunk{context, group, {}, segments_of(group, first, numel), element_index(group, first)};
  for (std::size_t i = 0; i < shards.count(); ++i) {
    const offload::ShardSpec& spec = store_.spec(shards.shard(i));
    const std::size_t per_value = shards.per_value(i);
    if (std::byte* const home = store_.device_address(shards.shard(i))) {
      const TensorSpan all{home, spec.dtype, spec.numel};
      chunk.parts.push_back({all.subspan(first / per_value, numel / per_value), shards.access(i), Place::Device});
    } else {
      chunk.parts.push_back({in_page(shards, i, pages[i], first, numel), shards.access(i), Place::Host});
    }
  }
  const DeviceUpdates::Part& param = chunk.parts[kParam];
  if (param.place == Place::Host && !reads(param.access)) {
    zero_padding(param.values, chunk.segments);  // the device writes the rest
  }
  last_on_device_ = device_->start(chunk);
  for (std::size_t i = 0; i < chunk.parts.size(); ++i) {
    if (chunk.parts[i].place == Place::Host || i == kParam) pages[i].used_until = last_on_device_;
  }
}

}  // namespace strata::zero
