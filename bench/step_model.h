// The random Llama that step benches train, and the engines that train it.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "bench/bench_step.h"
#include "core/scratch_folder.h"
#include "engine/engine.h"

namespace strata::bench {

// Holds a config.json while the bench runs. Throws: ConfigError for a shape that is none, IoError.
class ModelFolder {
 public:
  explicit ModelFolder(const StepBenchOptions& options);
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  ScratchFolder folder_;
};

// The micro-batches of a step, each as large as the configuration allows, with a label everywhere.
std::vector<data::Batch> batches_of(const engine::EngineConfig& config, std::int64_t vocabulary);
// Tokens of all of them.
std::int64_t tokens_of(const engine::EngineConfig& config);

// Everything on the device of a rank alone, no optimizer states, and no update beside a forward.
engine::EngineConfig compute_config(const StepBenchOptions& options, const std::filesystem::path& model);
// Parameters, gradients and optimizer states in host memory.
engine::EngineConfig host_config(const StepBenchOptions& options, const std::filesystem::path& model);
// Parameters and optimizer states on the drive; without options.host_budget, next to nothing of them cached.
engine::EngineConfig nvme_config(const StepBenchOptions& options, const std::filesystem::path& model);
// The computing of `engine` alone: the same model, batches, products and recomputed layers with everything on the
// device of a rank alone, and no update beside a forward.
engine::EngineConfig compute_config_of(const engine::Engine& engine);
// With `config`, beside another one that it is compared with. Throws: as Engine::create; OutOfBudget says why it is
// needed.
std::unique_ptr<engine::Engine> engine_beside(const engine::EngineConfig& config);

// A step in the middle of others: the second one after a pause, because its update runs under the forward of the next.
// Nothing of this engine runs when it returns.
inline constexpr std::uint64_t kStepsUntilSettled = 2;
engine::StepSummary settled_step(engine::Engine& engine, std::span<const data::Batch> batches);

}  // namespace strata::bench
