#include "bench/step_model.h"

#include <algorithm>
#include <cerrno>
#include <fstream>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "engine/model_size.h"

namespace strata::bench {

using engine::Engine;
using engine::EngineConfig;
using offload::TierKind;

namespace {

constexpr std::uint64_t kMostAtHome = 18;  // bytes a parameter, with gradients in fp32

EngineConfig base_config(const StepBenchOptions& options, const std::filesystem::path& model) {
  EngineConfig config = options.engine;
  config.model = model;
  config.random_weights = true;
  config.batch_size = 1;
  config.max_tokens = options.tokens;
  return config;
}

void leave_the_other_ranks(EngineConfig& config) {
  config.comm.reset();
  config.node_comm.reset();
  config.across_comm.reset();
  config.communicator_bytes = 0;
  config.slow_links = {};
  config.shard_within_node = false;
  config.held_layers.reset();
}

}  // namespace

ModelFolder::ModelFolder(const StepBenchOptions& options) : folder_(options.dir, "strata-bench-step") {
  if (options.heads == 0 && options.hidden % 64 != 0) {
    throw ConfigError("--hidden must be a multiple of 64 where --heads is not given");
  }
  const std::int64_t heads = options.heads > 0 ? options.heads : options.hidden / 64;
  const nlohmann::json config{
      {"model_type", "llama"},
      {"architectures", {"LlamaForCausalLM"}},
      {"vocab_size", options.vocab},
      {"hidden_size", options.hidden},
      {"intermediate_size", options.inner > 0 ? options.inner : options.hidden * 8 / 3 / 64 * 64},
      {"num_hidden_layers", options.layers},
      {"num_attention_heads", heads},
      {"num_key_value_heads", options.kv_heads > 0 ? options.kv_heads : heads},
      {"max_position_embeddings", std::max(options.tokens, options.positions)},
      {"rms_norm_eps", 1e-5},
      {"hidden_act", "silu"},
      {"tie_word_embeddings", true},
      {"torch_dtype", "bfloat16"}};
  std::ofstream out(path() / "config.json");
  out << config.dump(2);
  if (!out.flush()) throw IoError({errno, "write", (path() / "config.json").string(), 0, 0, {}});
}

std::vector<data::Batch> batches_of(const EngineConfig& config, std::int64_t vocabulary) {
  std::vector<data::Batch> batches(static_cast<std::size_t>(config.micro_batches));
  std::int64_t t = 0;
  for (data::Batch& batch : batches) {
    batch.sequences = config.batch_size;
    batch.tokens_each = config.max_tokens;
    batch.target_tokens = config.batch_size * config.max_tokens;
    for (std::int64_t i = 0; i < batch.target_tokens; ++i, ++t) {
      batch.tokens.push_back((t * 7919 + 13) % vocabulary);
      batch.labels.push_back((t * 104729 + 1) % vocabulary);
    }
  }
  return batches;
}

std::int64_t tokens_of(const EngineConfig& config) {
  return config.batch_size * config.max_tokens * config.micro_batches;
}

EngineConfig compute_config(const StepBenchOptions& options, const std::filesystem::path& model) {
  EngineConfig config = base_config(options, model);
  leave_the_other_ranks(config);
  config.param_home = config.optimizer_home = config.grad_home = TierKind::Device;
  config.host_budget = std::uint64_t{1} << 30;
  config.optimizer = {.kind = OptimizerKind::Sgd, .master = MasterEncoding::Remainder};
  config.overlap_update = false;
  return config;
}

EngineConfig host_config(const StepBenchOptions& options, const std::filesystem::path& model) {
  EngineConfig config = base_config(options, model);
  config.param_home = config.optimizer_home = config.grad_home = TierKind::Host;
  config.device_budget = std::uint64_t{4} << 30;
  return config;
}

EngineConfig nvme_config(const StepBenchOptions& options, const std::filesystem::path& model) {
  EngineConfig config = base_config(options, model);
  // What several ranks have whole, each would write for itself.
  const int divided = config.comm && config.comm->world() > 1 ? config.zero_stage : 3;
  config.param_home = divided >= 3 ? TierKind::Nvme : TierKind::Host;
  config.optimizer_home = divided >= 1 ? TierKind::Nvme : TierKind::Host;
  config.grad_home = TierKind::Host;
  config.nvme_paths = {options.dir};
  config.device_budget = std::uint64_t{4} << 30;
  if (options.host_budget > 0) {
    config.host_budget = options.host_budget;
    return config;
  }
  // What is at home there, and pages for reading ahead and writing behind, but no room for a cache. Nothing is allocated
  // for the first plan, so it need not leave room for that of other ranks.
  config.slot_bytes = std::uint64_t{1} << 20;
  EngineConfig roomy = config;
  roomy.local_ranks = 1;
  roomy.host_budget = kMostAtHome * engine::model_size(model).parameters + (std::uint64_t{256} << 20);
  const engine::MemoryPlan plan = Engine::plan(roomy);
  std::uint64_t at_home = 0;
  for (const engine::PlanRow& row : plan.rows) {
    if (row.what != "pages (staging and cache)") at_home += row.bytes[1];
  }
  config.device_budget = plan.need[0];
  config.host_budget = at_home + options.page_bytes;
  return config;
}

EngineConfig compute_config_of(const Engine& engine) {
  EngineConfig config = engine.config();
  const engine::MemoryPlan& plan = engine.memory_plan();
  leave_the_other_ranks(config);
  config.param_home = config.optimizer_home = config.grad_home = TierKind::Device;
  config.param_host_share = config.optimizer_host_share = 0;
  config.nvme_paths.clear();
  config.nvme_budget.reset();
  config.device_budget.reset();
  config.host_budget = std::uint64_t{1} << 30;
  config.slot_bytes.reset();
  config.look_ahead_bytes.reset();
  config.compute = engine.compute_name() == "fp32" && config.param_type != DType::F32 ? engine::Compute::Fp32
                                                                                      : engine::Compute::ParamType;
  config.accumulation = plan.accumulation == zero::Accumulation::Vertical ? engine::Accumulation::Vertical
                                                                          : engine::Accumulation::Horizontal;
  config.recomputed_layers = static_cast<std::uint64_t>(engine.model_config().num_hidden_layers) - plan.kept_graphs;
  config.overlap_update = false;
  config.trace = nullptr;
  return config;
}

std::unique_ptr<Engine> engine_beside(const EngineConfig& config) {
  try {
    return Engine::create(config);
  } catch (const OutOfBudget& error) {
    throw OutOfBudget(
        "bench step compares with the same model in memory, which does not fit beside it: " + std::string(error.what()),
        error.need_bytes(), error.have_bytes());
  }
}

engine::StepSummary settled_step(Engine& engine, std::span<const data::Batch> batches) {
  (void)engine.train_step(batches, 1e-4);
  const engine::StepSummary step = engine.train_step(batches, 1e-4);
  engine.wait();
  return step;
}

}  // namespace strata::bench
