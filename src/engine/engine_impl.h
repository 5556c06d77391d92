// The parts of a running engine, in the order in which they depend on each other. Private to src/engine/engine*.cpp.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "core/executor.h"
#include "core/local_communicator.h"
#include "cpu_adam/cpu_optimizer.h"
#include "cpu_adam/cpu_shard_math.h"
#include "engine/accelerator.h"
#include "engine/engine.h"
#include "engine/ideal.h"
#include "engine/page_plan.h"
#include "engine/parts.h"
#include "engine/shard_files.h"
#include "hf/safetensors.h"
#include "nvme/nvme_store.h"
#include "offload/shard_store.h"
#include "zero/layer_runner.h"
#include "zero/optimizer_pipeline.h"

namespace strata::engine {

inline zero::BatchView view_of(const data::Batch& batch) {
  return {batch.sequences, batch.tokens_each, batch.tokens, batch.labels};
}

// The tensors that a tied model has once and a file may have twice.
inline constexpr const char* kHead = "lm_head.weight";
inline constexpr const char* kEmbedding = "model.embed_tokens.weight";

class Engine::Impl {
 public:
  Impl(const EngineConfig& config, ModelParts parts, MemoryPlan plan);
  ~Impl() { store_->let_lanes_pass(); }  // what its threads still run must end

  void load_weights();
  StepSummary train_step(std::span<const data::Batch> micro_batches, double learning_rate);
  EvalSummary evaluate(const data::Batch& batch);
  std::vector<std::int64_t> generate(std::vector<std::int64_t> prompt, std::size_t max_new,
                                     const std::function<void(std::int64_t)>& on_token);
  void export_model(const std::filesystem::path& folder);
  void save_states(const std::filesystem::path& folder);
  void load_states(const std::filesystem::path& folder, const RunState& state);
  std::vector<float> get(const std::string& what, const std::string& name);
  void set(const std::string& what, const std::string& name, std::span<const float> values);
  PerTier peak_bytes();
  std::string compute_name() const;
  std::string description() const;
  std::uint64_t parameters() const;
  std::uint64_t trained_parameters() const;
  std::vector<std::string> frozen_groups() const;
  BlobStoreStats nvme_stats() const { return nvme_store_ ? nvme_store_->stats() : BlobStoreStats{}; }
  Communicator& communicator() const { return comm_; }
  SentBytes sent() const { return collectives_.sent(); }
  void wait() { use_schedule(Mode::None); }
  std::uint64_t nvme_written() const { return nvme_stats().bytes_written; }

  void throw_if_failed() const {
    if (failure_) std::rethrow_exception(failure_);
  }
  // Runs `fn`; remembers the first failure and rethrows it from then on.
  template <typename Fn>
  auto guarded(Fn&& fn) {
    throw_if_failed();
    try {
      return fn();
    } catch (...) {
      failure_ = std::current_exception();
      store_->let_lanes_pass();               // the gathers for which updates may wait never come
      abort_communicators(config, failure_);  // nor do the collectives for which other ranks wait
      throw;
    }
  }

  const EngineConfig config;
  ModelParts parts;
  const MemoryPlan plan;
  RunState state{.loss_scale = resumed_loss_scale(config.loss_scale, {})};

 private:
  struct ReleaseTensors {
    Stream& stream;
    zero::LayerCompute& compute;
    ReleaseTensors(Stream& computing, zero::LayerCompute& layers) : stream(computing), compute(layers) {}
    ReleaseTensors(const ReleaseTensors&) = delete;
    ReleaseTensors& operator=(const ReleaseTensors&) = delete;
    ~ReleaseTensors() {
      stream.record().wait_noexcept();
      compute.release();
    }
  };
  using Clock = std::chrono::steady_clock;
  enum class Mode : std::uint8_t { None, Train, Forward };
  struct Named {
    std::size_t group = 0;
    std::size_t param = 0;
  };
  // Values of a parameter from `first` on, in the destination's type.
  using ParamSource = std::function<void(const Named&, std::uint64_t first, TensorSpan destination)>;

  std::array<offload::Tier*, offload::kTiers> tiers();
  void add_shards();
  std::vector<offload::ShardId> add_grads(const std::vector<GroupSpecs>& groups,
                                          std::vector<std::optional<offload::ShardId>>& local);
  void choose_update_sites();
  void wire();
  // Other modes than Train wait for the updates that are under way.
  void use_schedule(Mode mode);
  void settle();
  zero::UpdateTime update_time() const { return engine::update_time(config); }
  // Forward and backward; with updates during backward they are under way when it returns.
  zero::LossSum run_micro_batches(std::span<const zero::BatchView> views, double learning_rate, double tokens);
  // What links and pages have done so far.
  struct Meters {
    BlobStoreStats nvme;
    offload::LinkStats device;
    std::uint64_t to_device = 0;
    std::uint64_t to_host = 0;
    double waited = 0;
    SentBytes sent;
    double comm_seconds = 0;
  };
  Meters meters() const;
  // Plans the pages of a training step for the computing of a measured one (all zero: not known, taken as bound by the
  // drive). Requires: the schedule of another mode is in use, or none.
  void plan_pages(const StepSummary& measured);
  std::vector<Named> all_params() const;
  // Throws: ConfigError.
  Named find_param(const std::string& name) const;
  const zero::ParamDecl& decl(const Named& named) const;
  bool trainable(std::size_t group) const { return compute_->layouts()[group].group().trainable; }
  std::span<const StateSpec> states_of(std::size_t group) const {
    return trainable(group) ? std::span<const StateSpec>(states_) : std::span<const StateSpec>();
  }
  // What of the group's flat layout the shard holds on this rank.
  ShardSlice slice(std::size_t group, offload::ShardId shard, std::size_t elements_per_value = 1) const;
  ShardSlice state_slice(std::size_t group, std::size_t s) const {
    return slice(group, shards_[group].states[s], states_[s].elements_per_value);
  }
  hf::TensorCatalog checked_catalog() const;
  void pin(std::span<std::byte> pages);
  void read_weights();
  // Of one group: what was gathered of them before is out of date.
  void parameters_changed(std::size_t group) { groups_[group].update_until({}); }
  void read_states(const std::filesystem::path& folder);
  void fill_states(const ParamSource& source);
  void fill_from(const ParamSource& source, std::size_t group, const ShardSlice& slice);
  // A tensor of a file: values of `param`, `elements_per_value` of its elements to each.
  struct TensorSource {
    hf::TensorToWrite tensor;
    Named param;
    std::size_t elements_per_value = 1;
    std::function<void(std::uint64_t first, TensorSpan destination)> read;
  };
  // Every rank writes the values in its row into files that rank 0 makes.
  void write_tensors(const std::filesystem::path& folder, const std::vector<TensorSource>& sources,
                     const hf::WriteOptions& options);
  void write_model(const std::filesystem::path& folder);
  // These are of elements that this rank holds. Elements of the fp32 master (an exact widening of the weight where
  // there are no states).
  void copy_master(const Named& named, std::uint64_t first, TensorSpan values);
  // Elements of the weight in any type.
  void copy_param(const Named& named, std::uint64_t first, TensorSpan destination);
  // As the mean over the tokens of the last step.
  void copy_gradient(const Named& named, std::uint64_t first, TensorSpan values);
  void copy_moment(const Named& named, std::size_t s, std::uint64_t first, TensorSpan values);
  // Which state the moment of that name is; its scales follow it.
  std::size_t find_moment(const std::string& what) const;
  const MomentSpec& moment(std::size_t s) const;
  void require_gradient(const Named& named) const;
  // Throws: ConfigError where the parameter is frozen and has no `what`.
  void require_trained(const Named& named, const std::string& what) const;
  template <typename Fn>
  void for_held(const Named& named, const ShardSlice& held, std::span<const float> values, Fn&& fn);
  void set_master(const Named& named, std::span<const float> values);
  void set_moment(const Named& named, std::size_t s, std::span<const float> values);
  TensorSpan scratch(std::size_t part, DType dtype, std::size_t numel) const;
  DriveRates rates_of_drive(std::size_t path, const DriveStats& drive) const;
  // `divisor`: what the stored gradients are of the mean gradient.
  void start_update(double grad_norm, double divisor, double learning_rate);
  // Times and bytes since the last call.
  void measure(StepSummary& summary);
  void add_traffic(StepSummary& summary);
  std::vector<ResourceTime> computing(const StepSummary& summary) const;
  void add_ideal(StepSummary& summary, const BlobStoreStats& before, const BlobStoreStats& after) const;
  StepContext step_context(double learning_rate, float grad_scale) const;
  zero::Streams streams() { return {*copy_in_, *copy_out_, *comm_stream_, *compute_stream_}; }

  // Destroyed in reverse order: first what runs, last what pays.
  const std::unique_ptr<Accelerator> accelerator_;
  Device& device_;
  Budget host_budget_;
  Budget nvme_budget_;
  std::unique_ptr<Parallel> pool_;
  std::unique_ptr<Parallel> one_thread_;
  cpu_adam::CpuOptimizer optimizer_;
  cpu_adam::CpuShardMath host_math_;
  cpu_adam::CpuShardMath adder_math_;
  Collectives collectives_;
  Communicator& comm_;  // every rank of the run
  SlotPool pages_;
  std::optional<SlotPool> grad_staging_;
  std::vector<Buffer> update_staging_;
  Buffer file_buffer_;
  const Reservation communicators_;  // what EngineConfig's hold
  offload::HostTier host_tier_;
  std::vector<std::unique_ptr<cuda::PinnedRegion>> pinned_;  // of the memory above
  offload::DeviceTier device_tier_;
  std::vector<nvme::DeviceProfile> profiles_;  // of the paths
  std::unique_ptr<nvme::NvmeStore> nvme_store_;
  std::unique_ptr<offload::BlobTier> nvme_tier_;
  std::unique_ptr<zero::LayerCompute> compute_;
  std::unique_ptr<offload::ShardStore> store_;
  std::unique_ptr<zero::DeviceSlots> gather_slots_;
  std::unique_ptr<zero::DeviceSlots> grad_slots_;
  std::unique_ptr<zero::DeviceSlots> grad_sum_slots_;
  std::vector<zero::GroupShards> shards_;
  std::vector<zero::UpdateShards> updates_;
  const std::vector<StateSpec> states_;  // of the optimizer; empty without training
  const std::vector<MomentSpec> moments_;
  zero::LinkCounters counters_;
  zero::BusyTimes busy_;
  Meters reported_;  // up to the end of the last step
  Clock::time_point reported_at_;
  std::vector<zero::Visit> train_visits_;
  std::shared_ptr<const offload::Schedule> train_schedule_;
  int steps_measured_ = 0;
  std::optional<StepSummary> measured_;  // of the second step, until the pages are planned with it
  std::shared_ptr<const offload::Schedule> forward_schedule_;
  Mode mode_ = Mode::None;
  std::unique_ptr<Stream> copy_in_;
  std::unique_ptr<Stream> copy_out_;
  std::unique_ptr<Stream> comm_stream_;
  std::unique_ptr<Stream> compute_stream_;
  // Tensors lie in memory that belongs to this stream: they end before it does.
  const ReleaseTensors release_tensors_{*compute_stream_, *compute_};
  std::unique_ptr<Stream> update_in_;
  std::unique_ptr<Stream> update_stream_;
  std::unique_ptr<Stream> update_out_;
  ThreadExecutor adder_{"grad-adder"};
  std::vector<zero::ParamGroup> groups_;
  std::unique_ptr<zero::GradReducer> reducer_;
  std::unique_ptr<zero::DeviceUpdates> device_updates_;
  std::unique_ptr<zero::OptimizerPipeline> pipeline_;
  std::unique_ptr<zero::LayerRunner> runner_;
  ThreadExecutor update_thread_{"updates"};
  std::vector<Event> updating_;  // of the last step, per group
  double grad_divisor_ = 0;      // what the gradients at home are of the last step's mean gradient; 0: there are none
  std::exception_ptr failure_;
};

}  // namespace strata::engine
