#include "bench/update_rig.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <string>

#include "core/bytes.h"
#include "core/error.h"
#include "core/executor.h"
#include "core/host_device.h"
#include "core/numeric.h"
#include "core/slot_pool.h"
#include "cpu_adam/cpu_optimizer.h"
#include "engine/page_plan.h"
#include "nvme/nvme_store.h"
#include "offload/shard_store.h"
#include "zero/optimizer_pipeline.h"
#include "zero/visits.h"

namespace strata::bench {
namespace {

using offload::Access;
using offload::ShardKind;
using offload::TierKind;

// About a block of a 0.5 B model.
constexpr std::uint64_t kGroupNumel = 8ULL << 20;

std::vector<zero::FlatLayout> layouts_of(std::uint64_t numel) {
  std::vector<zero::FlatLayout> layouts;
  for (std::uint64_t first = 0; first < numel; first += kGroupNumel) {
    const auto part = static_cast<std::int64_t>(std::min(kGroupNumel, numel - first));
    const std::string name = "group" + std::to_string(layouts.size());
    layouts.emplace_back(zero::GroupDecl{name, {{name + ".weight", {part}}}}, 1);
  }
  return layouts;
}

std::uint64_t state_bytes_of(const std::vector<zero::FlatLayout>& layouts, const std::vector<StateSpec>& states) {
  std::uint64_t bytes = 0;
  for (const zero::FlatLayout& layout : layouts) {
    for (const StateSpec& state : states) bytes += state.values_for(layout.shard_numel()) * bytes_of(state.dtype);
  }
  return bytes;
}

// Pages that states have, each shard with an end of its own.
std::size_t pages_of(const std::vector<zero::FlatLayout>& layouts, const std::vector<StateSpec>& states,
                     std::uint64_t slot_bytes) {
  std::size_t pages = 0;
  for (const zero::FlatLayout& layout : layouts) {
    for (const StateSpec& state : states) {
      pages += ceil_div(state.values_for(layout.shard_numel()) * bytes_of(state.dtype), slot_bytes);
    }
  }
  return pages;
}

}  // namespace

class UpdateRig::Impl {
 public:
  explicit Impl(const UpdateRigOptions& options)
      : options_(options),
        layouts_(layouts_of(options.numel)),
        pool_(make_thread_pool(options.threads)),
        optimizer_(*pool_, options.optimizer),
        states_(optimizer_.states(DType::BF16)),
        state_bytes_(state_bytes_of(layouts_, states_)),
        pins_(std::max(offload::ShardStore::kMinSlots, 2 + states_.size())),
        slots_(allocate_host(host_, slots() * options.slot_bytes, MemoryTag::Staging), options.slot_bytes),
        nvme_(nvme_options(), disk_),
        store_({nullptr, &host_tier_, &nvme_tier_}, slots_, std::make_unique<offload::NextUsePolicy>(),
               {.pins_at_once = pins_}) {
    add_shards();
    fill_gradients();
    std::vector<const zero::FlatLayout*> layouts;
    for (const zero::FlatLayout& layout : layouts_) layouts.push_back(&layout);
    pipeline_ = std::make_unique<zero::OptimizerPipeline>(layouts, updates_, store_, optimizer_, nullptr,
                                                          updates_thread_, busy_);
    fill_states();
    plan(0);
  }

  UpdateMeasure step() {
    using Clock = std::chrono::steady_clock;
    const BlobStoreStats before = nvme_.stats();
    (void)busy_.take();
    const Clock::time_point start = Clock::now();
    pipeline_->step({.step = ++steps_, .learning_rate = 1e-4, .weight_decay = 0.01});
    store_.drain();
    const std::chrono::duration<double> seconds = Clock::now() - start;
    const BlobStoreStats after = nvme_.stats();
    const UpdateMeasure measure{seconds.count(), busy_.take().of(zero::Work::Update),
                                after.bytes_read - before.bytes_read, after.bytes_written - before.bytes_written};
    // As the engine: the first step warms up, and after the second one the plan knows what computing takes.
    if (steps_ == 2) plan(measure.update_seconds);
    return measure;
  }

  std::uint64_t state_bytes() const { return state_bytes_; }
  std::uint64_t host_bytes() const { return host_.peak(); }

 private:
  std::size_t slots() const {
    const std::size_t pages = pages_of(layouts_, states_, options_.slot_bytes);
    const auto kept = static_cast<std::size_t>(std::llround(options_.cached_share * static_cast<double>(pages)));
    return kept + engine::passing_slots(options_.rates, {pins_, options_.slot_bytes, pins_});
  }

  nvme::NvmeOptions nvme_options() const {
    nvme::NvmeOptions options;
    options.paths = {options_.folder};
    options.profiles = {nvme::load_profile(options_.folder).value_or(nvme::DeviceProfile{})};
    options.chunk_bytes = options_.slot_bytes;
    options.regions = {slots_.region()};
    return options;
  }

  void add_shards() {
    for (const zero::FlatLayout& layout : layouts_) {
      const std::string& name = layout.group().name;
      const std::uint64_t numel = layout.shard_numel();
      zero::UpdateShards& update = updates_.emplace_back();
      update.param = store_.add({name + "/param", ShardKind::Param, DType::BF16, numel, TierKind::Host});
      update.param_access = optimizer_.reads_param(DType::BF16) ? Access::ReadWrite : Access::Write;
      update.grad = store_.add({name + "/grad", ShardKind::Grad, DType::BF16, numel, TierKind::Host});
      for (const StateSpec& state : states_) {
        update.states.push_back(store_.add(
            {name + "/" + state.name, ShardKind::OptimState, state.dtype, state.values_for(numel), TierKind::Nvme}));
        update.elements_per_value.push_back(state.elements_per_value);
      }
    }
  }

  // Random, so that no drive can compress what comes of them.
  void fill_gradients() {
    std::mt19937 random(1);
    for (const zero::UpdateShards& update : updates_) {
      for_each_piece(update.grad, [&](TensorSpan values) {
        auto* const codes = reinterpret_cast<std::uint16_t*>(values.data);
        for (std::size_t i = 0; i < values.numel; ++i) {
          codes[i] = float_to_bf16(static_cast<float>(random()) * 0x1p-42F - 0x1p-11F);
        }
      });
    }
  }

  void fill_states() {
    for (const zero::UpdateShards& update : updates_) {
      for (const offload::ShardId shard : {update.param}) for_each_piece(shard, zero_values);
      for (const offload::ShardId shard : update.states) for_each_piece(shard, zero_values);
    }
    store_.drain();
  }

  static void zero_values(TensorSpan values) { std::fill_n(values.data, values.bytes(), std::byte{0}); }

  template <typename Fn>
  void for_each_piece(offload::ShardId shard, Fn&& fn) {
    const DType dtype = store_.spec(shard).dtype;
    for (std::uint32_t p = 0; p < store_.pieces(shard); ++p) {
      const offload::PieceId piece{shard, p};
      const offload::Pin pin = store_.acquire(piece, Access::Write);
      fn(TensorSpan{pin.wait().data(), dtype, store_.range(piece).numel});
    }
  }

  void plan(double update_seconds) {
    const zero::StepSeconds seconds{{}, update_seconds / static_cast<double>(options_.numel)};
    const std::vector<offload::TimedAccess> accesses = zero::timed_accesses(store_, {}, {}, {}, &updates_, seconds);
    const engine::PagePlan pages =
        engine::plan_pages(accesses, options_.rates, {slots_.slots(), slots_.slot_bytes(), pins_});
    store_.set_schedule(pages.schedule);
    store_.set_look_ahead(pages.look_ahead_bytes);
    store_.drain();
  }

  // Destroyed in reverse order: first what runs, last what pays.
  const UpdateRigOptions options_;
  const std::vector<zero::FlatLayout> layouts_;
  Budget host_{"host", std::uint64_t{1} << 50};
  Budget disk_{"nvme", std::uint64_t{1} << 50};
  std::unique_ptr<Parallel> pool_;
  cpu_adam::CpuOptimizer optimizer_;
  const std::vector<StateSpec> states_;
  const std::uint64_t state_bytes_;
  const std::size_t pins_;
  SlotPool slots_;
  nvme::NvmeStore nvme_;
  offload::HostTier host_tier_{host_};
  offload::BlobTier nvme_tier_{nvme_};
  offload::ShardStore store_;
  std::vector<zero::UpdateShards> updates_;
  zero::BusyTimes busy_;
  std::unique_ptr<zero::OptimizerPipeline> pipeline_;
  ThreadExecutor updates_thread_{"updates"};
  std::int64_t steps_ = 0;
};

UpdateRig::UpdateRig(const UpdateRigOptions& options) {
  if (options.numel == 0) throw ConfigError("an update needs parameters");
  if (!(options.cached_share >= 0 && options.cached_share <= 1)) {
    throw ConfigError("a cached share lies between 0 and 1");
  }
  if (options.slot_bytes == 0 || options.slot_bytes % (ShardMath::kNormBlock * 4) != 0) {
    throw ConfigError("a page is a multiple of 256 KiB");
  }
  impl_ = std::make_unique<Impl>(options);
}

UpdateRig::~UpdateRig() = default;

UpdateMeasure UpdateRig::step() {
  return impl_->step();
}

std::uint64_t UpdateRig::state_bytes() const {
  return impl_->state_bytes();
}
std::uint64_t UpdateRig::host_bytes() const {
  return impl_->host_bytes();
}

}  // namespace strata::bench
