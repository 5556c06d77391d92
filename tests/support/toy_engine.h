// ToyEngine: how the parts of a step are put together, around ToyCompute. It documents the wiring.
#pragma once

#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/executor.h"
#include "core/host_device.h"
#include "core/local_communicator.h"
#include "offload/shard_store.h"
#include "offload/shares.h"
#include "support/faulty_blob_store.h"
#include "support/memory_blob_store.h"
#include "support/plain_adam.h"
#include "support/plain_math.h"
#include "support/store_rig.h"
#include "support/toy_compute.h"
#include "zero/grad_homes.h"
#include "zero/layer_runner.h"

namespace strata::test {

// Where the toy's updates run: each on the site of its states' home, all on one site, or unit by unit as chance wants.
enum class ToySites : std::uint8_t { AsHomes, Host, Device, Mixed };

struct ToyOptions {
  offload::TierKind param_home = offload::TierKind::Host;
  offload::TierKind state_home = offload::TierKind::Host;
  offload::TierKind grad_home = offload::TierKind::Host;
  DType dtype = DType::F32;
  std::size_t blocks = 3;
  std::size_t micro_batches = 1;
  zero::Accumulation accumulation = zero::Accumulation::Horizontal;
  ToyCompute::Head head = ToyCompute::Head::Tied;
  std::size_t vocabulary = ToyCompute::kVocabulary;
  std::vector<std::size_t> frozen = {};  // groups
  double param_host_share = 0;           // of a class at home elsewhere, the part that is at home in host memory
  double state_host_share = 0;
  std::size_t slots = 64;
  std::size_t slot_bytes = kPageBytes;
  std::uint64_t look_ahead_pages = 0;
  zero::GatherAhead gather_ahead = zero::GatherAhead::One;
  zero::UpdateTime update_time = zero::UpdateTime::AfterBackward;
  ToySites sites = ToySites::AsHomes;
  HostDeviceOptions device = {};
  Device* other_device = nullptr;  // instead of a host device
  // The ranks of which this engine is one; null: it is alone.
  Communicator* comm = nullptr;
  int zero_stage = 3;
  Communicator* node = nullptr;  // with it, parameters have a second partition among these ranks
  zero::GradReducer::Options::Order order = zero::GradReducer::Options::Order::ByRank;
};

// Micro-batch `index` of step `step`: 2 sequences of 6 tokens, some without a label.
struct ToyBatch {
  ToyBatch(std::int64_t step, std::size_t index) : tokens(12), labels(12) {
    std::mt19937_64 random(static_cast<std::uint64_t>(step) * 100 + index);
    std::uniform_int_distribution<std::int64_t> any(0, ToyCompute::kVocabulary - 1);
    for (std::int64_t& token : tokens) token = any(random);
    for (std::int64_t& label : labels) label = any(random) % 5 == 0 ? -100 : any(random);
  }
  zero::BatchView view() const { return {2, 6, tokens, labels}; }
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> labels;
};

inline StepContext toy_step(std::int64_t step) {
  return {.step = step, .learning_rate = 0.01, .weight_decay = 0.1, .grad_scale = 0.05F};
}

// First values of a group in fp32: zero in the padding.
inline std::vector<float> toy_parameters(const zero::FlatLayout& layout) {
  std::vector<float> values(layout.numel(), 0.0F);
  std::mt19937_64 random(layout.param_numel());
  for (const zero::ParamSlot& slot : layout.params()) {
    for (std::size_t i = 0; i < slot.numel; ++i) {
      values[slot.offset + i] = std::uniform_real_distribution<float>(-0.5F, 0.5F)(random);
    }
  }
  return values;
}

// The type of a group's gradient at home: fp32 where several contributions are added.
inline DType toy_grad_dtype(DType dtype, std::size_t contributions) {
  return contributions > 1 ? DType::F32 : dtype;
}

using Bytes = std::vector<std::byte>;

inline Bytes encode(const std::vector<float>& values, DType dtype) {
  Bytes bytes(values.size() * bytes_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) store_element({bytes.data(), dtype, values.size()}, i, values[i]);
  return bytes;
}

// Members stand in the order in which they depend on each other; what streams and executors still run when the engine
// ends refers to what stands above them only.
class ToyEngine {
 public:
  explicit ToyEngine(const ToyOptions& chosen) : options(chosen) {
    add_shards();
    make_device_slots();
    std::vector<const zero::FlatLayout*> layouts;
    for (const zero::FlatLayout& layout : compute.layouts()) layouts.push_back(&layout);
    groups.reserve(layouts.size());
    for (std::size_t g = 0; g < layouts.size(); ++g) {
      groups.emplace_back(*layouts[g], options.dtype, shards[g], compute.binding(g), store, *gather, comm, streams(),
                          counters, options.node);
    }
    using NotFinite = zero::GradReducer::Options::NotFinite;
    const zero::GradReducer::Options reduce{options.dtype,
                                            zero::count_contributions(visits, layouts.size()),
                                            zero::leading_contributions(visits, layouts.size()),
                                            accumulators.get(),
                                            during_backward() ? NotFinite::Fails : NotFinite::Counts,
                                            options.order,
                                            grad_homes()};
    reducer = std::make_unique<zero::GradReducer>(layouts, shards, reduce, store, *grads, &staging, comm, streams(),
                                                  adder, math, math, counters);
    pipeline = std::make_unique<zero::OptimizerPipeline>(layouts, updates, store, adam, &device_updates, updates_thread,
                                                         busy, zero::update_lane(options.update_time));
    runner = std::make_unique<zero::LayerRunner>(compute, groups, *reducer, streams(), options.gather_ahead, busy,
                                                 std::vector<bool>{}, zero::reduce_order(comm.world()));
    make_schedules();
    store.set_schedule(train_schedule, train_schedule);
  }

  ~ToyEngine() { store.let_lanes_pass(); }

  // One optimizer step; returns the loss before it.
  zero::LossSum step() {
    ++steps;
    std::vector<ToyBatch> batches;
    // By their index in the global batch, so that ranks times micro-batches decide what is learnt.
    for (std::size_t m = 0; m < options.micro_batches; ++m) batches.emplace_back(steps, m * comm.world() + comm.rank());
    std::vector<zero::BatchView> views;
    for (const ToyBatch& batch : batches) views.push_back(batch.view());
    if (during_backward()) {
      std::vector<Event> started;
      const zero::LossSum loss = runner->train(visits, views, [&](std::size_t group, const Event& gradient) {
        return started.emplace_back(pipeline->start(group, toy_step(steps), gradient));
      });
      updating = std::move(started);
      return loss;
    }
    const zero::LossSum loss = runner->train(visits, views);
    if (options.update_time == zero::UpdateTime::AfterBackward) {
      pipeline->step(toy_step(steps));
      for (std::size_t g = 0; g < groups.size(); ++g) {
        if (trainable(g)) groups[g].update_until(Event());
      }
      return loss;
    }
    updating = pipeline->start(toy_step(steps));
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (trainable(g)) groups[g].update_until(updating[g], pipeline->updated_pieces(g));
    }
    return loss;
  }

  zero::LossSum evaluate() {
    settle();
    store.set_schedule(forward_schedule, train_schedule);
    const zero::LossSum loss = runner->evaluate(ToyBatch(1000, 0).view());
    store.set_schedule(train_schedule);
    return loss;
  }

  // Waits for the update of the last step.
  void settle() {
    store.let_lanes_pass();
    for (const Event& updated : updating) updated.wait();
    updating.clear();
  }

  // Everything that training changed, by name.
  std::map<std::string, Bytes> snapshot() {
    settle();
    store.set_schedule(nullptr);
    std::map<std::string, Bytes> all;
    for (const zero::UpdateShards& update : updates) {
      all[store.spec(update.param).name] = read_shard(store, update.param);
      for (const offload::ShardId state : update.states) all[store.spec(state).name] = read_shard(store, state);
    }
    return all;
  }

  // Per group, the group whose home its gradient uses.
  std::vector<std::size_t> grad_homes() const {
    std::vector<std::uint64_t> bytes;
    for (const zero::FlatLayout& layout : compute.layouts()) {
      bytes.push_back(zero::updated_range(layout, partition, comm.rank()).numel *
                      bytes_of(toy_grad_dtype(options.dtype, options.micro_batches)));
    }
    if (during_backward() && options.grad_home != offload::TierKind::Nvme) {
      return zero::grad_homes_in_turn(visits, bytes);
    }
    std::vector<std::size_t> own(bytes.size());
    std::iota(own.begin(), own.end(), std::size_t{0});
    return own;
  }
  bool trainable(std::size_t group) const { return compute.layouts()[group].group().trainable; }
  bool during_backward() const { return options.update_time == zero::UpdateTime::DuringBackward; }
  zero::Streams streams() { return {*copy_in, *copy_out, *comm_stream, *compute_stream}; }

  const ToyOptions options;
  Budget host{"host memory", std::uint64_t{128} << 20};
  HostDevice host_device{std::uint64_t{64} << 20, options.device};
  Device& device = options.other_device != nullptr ? *options.other_device : host_device;
  ThreadExecutor completions{"completions"};
  MemoryBlobStore memory{completions};
  FaultyBlobStore blobs{memory};
  offload::HostTier host_tier{host};
  offload::DeviceTier device_tier{device};
  offload::BlobTier nvme_tier{blobs};
  PlainMath math;
  PlainAdam adam;
  LocalCommunicator alone;
  Communicator& comm = options.comm != nullptr ? *options.comm : alone;
  ToyCompute compute{options.blocks, options.dtype, comm.world(), options.head, options.vocabulary, options.frozen};
  const zero::Partition partition = zero::partition_of(options.zero_stage, comm.world());
  const std::vector<zero::Visit> visits = zero::train_visits(compute, options.micro_batches, options.accumulation);
  SlotPool slots{allocate_host(host, options.slots* options.slot_bytes, MemoryTag::Staging), options.slot_bytes};
  // Exclusively the reducer's.
  SlotPool staging{allocate_host(host, 3 * options.slot_bytes, MemoryTag::Staging), options.slot_bytes};
  // More than any chunk needs: parameter, gradient and three states of a page at most.
  std::array<Buffer, zero::kUpdateStagingSets> device_staging{
      device.allocate(5 * options.slot_bytes, MemoryTag::Staging),
      device.allocate(5 * options.slot_bytes, MemoryTag::Staging),
      device.allocate(5 * options.slot_bytes, MemoryTag::Staging)};
  std::unique_ptr<zero::DeviceSlots> gather;
  std::unique_ptr<zero::DeviceSlots> grads;
  std::unique_ptr<zero::DeviceSlots> accumulators;
  offload::ShardStore store{{&device_tier, &host_tier, &nvme_tier},
                            slots,
                            std::make_unique<offload::NextUsePolicy>(),
                            {.look_ahead_bytes = options.look_ahead_pages * options.slot_bytes}};
  zero::LinkCounters counters;
  zero::BusyTimes busy;
  ThreadExecutor adder{"adder"};
  std::unique_ptr<Stream> copy_in = device.create_stream("copy-in");
  std::unique_ptr<Stream> copy_out = device.create_stream("copy-out");
  std::unique_ptr<Stream> comm_stream = device.create_stream("comm");
  std::unique_ptr<Stream> compute_stream = device.create_stream("compute");
  std::unique_ptr<Stream> update_in = device.create_stream("update-in");
  std::unique_ptr<Stream> update_stream = device.create_stream("update");
  std::unique_ptr<Stream> update_out = device.create_stream("update-out");
  zero::DeviceUpdates device_updates{adam, device_staging, {*update_in, *update_stream, *update_out}, counters, busy};
  std::vector<zero::GroupShards> shards;
  std::vector<zero::UpdateShards> updates;
  std::vector<zero::ParamGroup> groups;
  std::unique_ptr<zero::GradReducer> reducer;
  std::unique_ptr<zero::OptimizerPipeline> pipeline;
  std::unique_ptr<zero::LayerRunner> runner;
  ThreadExecutor updates_thread{"updates"};
  std::vector<Event> updating;
  std::shared_ptr<const offload::Schedule> train_schedule;
  std::shared_ptr<const offload::Schedule> forward_schedule;
  std::int64_t steps = 0;

 private:
  void add_shards() {
    using offload::Access;
    using offload::ShardKind;
    const std::vector<std::size_t> contributions = zero::count_contributions(visits, compute.layouts().size());
    std::vector<offload::ShardSpec> params;
    std::vector<offload::ShardSpec> states;
    const std::vector<StateSpec> kinds = adam.states(options.dtype);
    for (const zero::FlatLayout& layout : compute.layouts()) {
      const std::string& name = layout.group().name;
      const std::size_t numel = zero::updated_range(layout, partition, comm.rank()).numel;
      params.push_back({name + "/param", ShardKind::Param, options.dtype, numel, options.param_home});
      if (!layout.group().trainable) continue;
      for (const StateSpec& state : kinds) {
        states.push_back({name + "/" + state.name, ShardKind::OptimState, state.dtype, numel, options.state_home});
      }
    }
    share(params, options.param_host_share);
    share(states, options.state_host_share);
    const std::vector<std::size_t> leading = zero::leading_contributions(visits, compute.layouts().size());
    std::vector<offload::ShardId> gradients(compute.layouts().size());
    std::vector<std::optional<offload::ShardId>> local(compute.layouts().size());
    const std::vector<std::size_t> homes = grad_homes();
    for (const bool own : {true, false}) {
      for (std::size_t g = 0; g < gradients.size(); ++g) {
        if ((homes[g] == g) != own || !trainable(g)) continue;
        const zero::FlatLayout& layout = compute.layouts()[g];
        const zero::FlatRange updated = zero::updated_range(layout, partition, comm.rank());
        offload::ShardSpec spec{layout.group().name + "/grad", ShardKind::Grad,
                                toy_grad_dtype(options.dtype, contributions[g]), updated.numel, options.grad_home};
        if (!own) spec.within = {gradients[homes[g]], 0};
        if (options.order == zero::GradReducer::Options::Order::ByRank &&
            zero::adds_locally(partition, contributions[g], leading[g])) {
          // Beside a gradient on the drive its sum of one rank is in host memory.
          const bool beside = options.grad_home == offload::TierKind::Nvme;
          local[g] = store.add({layout.group().name + "/local grad", ShardKind::Grad, spec.dtype, layout.numel(),
                                beside ? offload::TierKind::Host : options.grad_home});
          if (!beside) spec.within = {*local[g], updated.first};
        }
        gradients[g] = store.add(spec);
      }
    }
    auto next_state = states.begin();
    for (std::size_t g = 0; g < compute.layouts().size(); ++g) {
      zero::GroupShards& shard = shards.emplace_back();
      const zero::FlatRange updated = zero::updated_range(compute.layouts()[g], partition, comm.rank());
      shard.first = updated.first;
      shard.partition = partition;
      if (!partition.param) {
        offload::ShardSpec whole = params[g];
        whole.name += " of all ranks";
        whole.numel = compute.layouts()[g].numel();
        shard.whole_param = store.add(whole);
        params[g].within = {*shard.whole_param, updated.first};
      }
      shard.param = store.add(params[g]);
      shard.grad = gradients[g];
      shard.local_grad = local[g];
      if (options.node != nullptr && partition.param) {
        offload::ShardSpec part = params[g];
        part.name += " of the node";
        part.numel = compute.layouts()[g].numel() / options.node->world();
        part.host_numel = 0;
        if (part.home == offload::TierKind::Nvme) part.home = offload::TierKind::Host;
        shard.node_param = store.add(part);
      }
      for (std::size_t i = 0; trainable(g) && i < kinds.size(); ++i) shard.states.push_back(store.add(*next_state++));
      const Access param_access = options.dtype == DType::F32 ? Access::ReadWrite : Access::Write;
      updates.push_back({shard.param, param_access, shard.grad, shard.states});
      updates.back().first = shard.first;
      updates.back().frozen = !trainable(g);
    }
    choose_sites();
    initialize();
  }

  void choose_sites() {
    std::mt19937_64 random(options.device.seed);
    for (zero::UpdateShards& update : updates) {
      const zero::UpdateWork work = zero::update_work(store, update);
      for (std::size_t unit = 0; unit < work.units.size(); ++unit) {
        zero::UpdateSite site = work.resident ? zero::UpdateSite::Device : zero::UpdateSite::Host;
        if (options.sites == ToySites::Host) site = zero::UpdateSite::Host;
        if (options.sites == ToySites::Device) site = zero::UpdateSite::Device;
        if (options.sites == ToySites::Mixed && !work.resident && random() % 2 == 0) site = zero::UpdateSite::Device;
        update.sites.push_back(site);
      }
    }
  }

  static void share(std::vector<offload::ShardSpec>& specs, double host_share) {
    const std::vector<std::uint64_t> numels = offload::host_numels(specs, host_share);
    for (std::size_t i = 0; i < specs.size(); ++i) specs[i].host_numel = numels[i];
  }

  // After the last add(): the first acquire() ends the set-up of a store.
  void initialize() {
    for (std::size_t g = 0; g < shards.size(); ++g) {
      const zero::FlatLayout& layout = compute.layouts()[g];
      const std::vector<float> all = toy_parameters(layout);
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(shards[g].first);
      const std::vector<float> values(begin, begin + static_cast<std::ptrdiff_t>(store.spec(shards[g].param).numel));
      const std::vector<float> zeros(values.size(), 0.0F);
      write_shard(store, shards[g].param, encode(values, options.dtype));
      for (const offload::ShardId state : shards[g].states) {
        const bool master = store.spec(state).name == layout.group().name + "/master";
        write_shard(store, state, encode(master ? values : zeros, DType::F32));
      }
    }
    store.drain_uncached();
  }

  void make_device_slots() {
    std::vector<std::uint64_t> bytes;
    for (const zero::FlatLayout& layout : compute.layouts()) bytes.push_back(layout.numel() * bytes_of(options.dtype));
    std::vector<std::vector<std::size_t>> gathered;
    std::vector<std::vector<std::size_t>> reduced;
    for (const zero::Visit& visit : visits) {
      gathered.push_back(visit.groups);
      reduced.push_back(visit.grad_groups);
    }
    const std::size_t window = options.gather_ahead == zero::GatherAhead::One ? 2 : 1;
    const bool alias = options.param_home == offload::TierKind::Device && (comm.world() == 1 || !partition.param);
    gather = std::make_unique<zero::DeviceSlots>(
        device, MemoryTag::Gather,
        alias ? std::vector<zero::SlotClass>{} : zero::plan_slot_classes(bytes, gathered, window));
    grads =
        std::make_unique<zero::DeviceSlots>(device, MemoryTag::Grad, zero::plan_slot_classes(bytes, reduced, window));
    std::vector<std::uint64_t> sums;
    for (const zero::FlatLayout& layout : compute.layouts()) sums.push_back(layout.numel() * sizeof(float));
    accumulators =
        std::make_unique<zero::DeviceSlots>(device, MemoryTag::Grad, zero::plan_slot_classes(sums, reduced, window));
  }

  void make_schedules() {
    const auto train =
        zero::plan_actions(visits, options.gather_ahead, options.update_time, {}, zero::reduce_order(comm.world()));
    const std::vector<zero::Visit> forward_visits = zero::forward_visits(compute);
    const auto forward = zero::plan_actions(forward_visits, options.gather_ahead);
    train_schedule = std::make_shared<offload::Schedule>(
        "train", zero::scheduled_accesses(store, shards, visits, train, &updates, options.update_time));
    forward_schedule = std::make_shared<offload::Schedule>(
        "evaluate", zero::scheduled_accesses(store, shards, forward_visits, forward, nullptr));
  }
};

}  // namespace strata::test
