// Engine: the composition root. Makes the model, plans the memory, reads the weights, trains.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/blob_store.h"
#include "data/sampler.h"
#include "engine/collectives.h"
#include "engine/engine_config.h"
#include "engine/memory_plan.h"
#include "hf/model_config.h"

namespace strata::engine {

struct StepSummary {
  double loss = 0;          // sum of token losses / target tokens of the step
  std::int64_t tokens = 0;  // target tokens
  double grad_norm = 0;     // of the mean gradient, before clipping
  double loss_scale = 0;    // that this step used; 0: none
  bool skipped = false;     // a gradient was not finite (or nothing was to be learnt): no bit of any state changed
  // Since the step before ended. Where updates run under the next forward (EngineConfig::overlap_update), this and all
  // below hold the update of the step before instead of this one's; where they run during backward, what was done of it
  // by then.
  double seconds = 0;
  double forward_seconds = 0;  // compute only
  double backward_seconds = 0;
  double optimizer_seconds = 0;      // on either site
  double device_update_seconds = 0;  // of those, on the device
  double stall_seconds = 0;          // none of the three was running
  double stall_nvme_seconds = 0;     // of those, at most what callers waited for pages
  // The step's time if compute and every drive overlapped fully, each at the rate it was measured at (a tuned drive's
  // profile, else the best rates of this run); absent while a rate is unknown. And which of them it is.
  std::optional<double> ideal_seconds;
  std::string binding_link;
  double nvme_busy_seconds = 0;  // with a request in flight on the busiest drive
  std::uint64_t nvme_read = 0;
  std::uint64_t nvme_written = 0;
  std::uint64_t to_device = 0;
  std::uint64_t to_host = 0;
  SentBytes sent;                 // to other ranks
  double comm_seconds = 0;        // a collective was running
  double stall_comm_seconds = 0;  // of the stall, at most what collectives took
};

struct EvalSummary {
  double loss_sum = 0;
  std::int64_t tokens = 0;
};

// What optimizer and data need to continue a run; part of every checkpoint.
struct RunState {
  std::int64_t step = 0;  // updates done, skipped ones excluded: Adam's bias correction counts these
  std::int64_t skipped = 0;
  LossScaleState loss_scale = {};
};

// One thread. After a failure every later call throws the first cause. Destruction frees every tier and removes what
// was put on drives.
class Engine {
 public:
  // Plans, allocates and reads the weights. Throws: DataError, ConfigError, OutOfBudget (before anything large exists),
  // IoError.
  static std::unique_ptr<Engine> create(const EngineConfig& config);
  // The plan alone: reads config.json, no weights. With `ranks`, that of one of so many, `per_node` of them on each
  // machine, instead of the communicators of `config`.
  static MemoryPlan plan(const EngineConfig& config, std::size_t ranks = 0, std::size_t per_node = 1);
  ~Engine();

  // Forward, backward and update of one global batch. Throws: DataError when a gradient is not finite and updates have
  // begun (EngineConfig::delay_update), or the loss scale would fall below its minimum; the engine is of no more use.
  // May return before the update has ended; whatever needs its result waits for it, and the next call throws what it
  // failed with. Requires: micro_batches.size() == config.micro_batches.
  StepSummary train_step(std::span<const data::Batch> micro_batches, double learning_rate);
  // Blocks until the update that may still run has ended. The next step's times and bytes begin here.
  void wait();
  // Sum of token losses over the batches of all ranks; weights and states do not change.
  EvalSummary evaluate(const data::Batch& batch);
  // Continues `prompt` greedily by at most `max_new` tokens, stopping at an end-of-sequence token; on_token gets each
  // new token. The whole context runs again for every token. Requires: prompt.size() + max_new <= config.max_tokens.
  std::vector<std::int64_t> generate(std::vector<std::int64_t> prompt, std::size_t max_new,
                                     const std::function<void(std::int64_t)>& on_token = {});

  const RunState& state() const;
  const MemoryPlan& memory_plan() const;
  const hf::ModelConfig& model_config() const;
  // Names of the groups that are not trained.
  std::vector<std::string> frozen_groups() const;
  const EngineConfig& config() const;
  // The ranks that train together; one where the configuration named none.
  Communicator& communicator() const;
  // What this rank has sent to others since the engine was made, or its communicators.
  SentBytes sent() const;
  // The type in which products run: "fp32", "bf16" or "fp16".
  std::string compute_name() const;
  std::uint64_t parameters() const;
  std::uint64_t trained_parameters() const;  // those that are not frozen
  // High-water marks of what the engine allocated, per tier.
  PerTier peak_bytes() const;
  // Bytes written to drives since the engine was made, laying out the states included.
  std::uint64_t nvme_written() const;
  // What each drive did since then; empty without an nvme tier.
  std::vector<DriveStats> drives() const;
  // Which compute type, instruction set and I/O were chosen, one line.
  std::string description() const;

  // All below are called by every rank. Where one fails, all throw (engine/all_ranks.h).

  // Writes a folder that transformers loads: weights in the types of the source folder, config and tokenizer files.
  // Written under a temporary name and renamed. Each rank writes its part of the weights, so all must see the folder.
  // Throws: IoError.
  void export_model(const std::filesystem::path& folder);
  // Writes parameters and optimizer states, by parameter name and independent of placement and ranks, into `folder`,
  // which exists.
  void save_states(const std::filesystem::path& folder);
  // Reads them back, each rank what it holds. Throws: DataError when a tensor is missing or has another shape.
  void load_states(const std::filesystem::path& folder, const RunState& state);

  // A whole tensor of the parameter that has this name in a checkpoint, decoded to fp32, on every rank and wherever it
  // lives. `what`: "parameter" (its fp32 master, or itself where there is none); "gradient" of the last step, the mean
  // over its tokens, before clipping, until the next step, not where updates run during backward in memory that layers
  // use in turn; or a moment of the optimizer: "exp_avg", "exp_avg_sq", "momentum_buffer".
  // Throws: ConfigError where there is no such tensor, which leaves the engine as it was.
  std::vector<float> get(const std::string& what, const std::string& name);
  // Likewise, from the same values on every rank; stored as the tensor is, so what is narrower than fp32 is rounded to
  // nearest. Not a gradient, which a step makes and uses up. Throws: ConfigError, before anything is changed, also for
  // values that cannot be stored: not finite, too large, negative where squares are.
  void set(const std::string& what, const std::string& name, std::span<const float> values);
  std::vector<float> parameter(const std::string& name) { return get("parameter", name); }

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata::engine
