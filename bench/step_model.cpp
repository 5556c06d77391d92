#include "bench/step_model.h"

#include <cerrno>
#include <fstream>

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace strata::bench {

using engine::Engine;
using engine::EngineConfig;
using offload::TierKind;

namespace {

EngineConfig base_config(const StepBenchOptions& options, const std::filesystem::path& model) {
  EngineConfig config;
  config.model = model;
  config.random_weights = true;
  config.optimizer = options.optimizer;
  config.batch_size = 1;
  config.max_tokens = options.tokens;
  return config;
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
      {"max_position_embeddings", options.tokens},
      {"rms_norm_eps", 1e-5},
      {"hidden_act", "silu"},
      {"tie_word_embeddings", true},
      {"torch_dtype", "bfloat16"}};
  std::ofstream out(path() / "config.json");
  out << config.dump(2);
  if (!out.flush()) throw IoError({errno, "write", (path() / "config.json").string(), 0, 0, {}});
}

data::Batch batch_of(const StepBenchOptions& options) {
  data::Batch batch;
  batch.sequences = 1;
  batch.tokens_each = options.tokens;
  for (std::int64_t t = 0; t < options.tokens; ++t) {
    batch.tokens.push_back((t * 7919 + 13) % options.vocab);
    batch.labels.push_back((t * 104729 + 1) % options.vocab);
  }
  batch.target_tokens = options.tokens;
  return batch;
}

EngineConfig memory_config(const StepBenchOptions& options, const std::filesystem::path& model) {
  EngineConfig config = base_config(options, model);
  config.param_home = config.optimizer_home = config.grad_home = TierKind::Device;
  config.host_budget = std::uint64_t{1} << 30;
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
  config.param_home = TierKind::Nvme;
  config.optimizer_home = TierKind::Nvme;
  config.grad_home = TierKind::Host;
  config.nvme_paths = {options.dir};
  config.device_budget = std::uint64_t{4} << 30;
  config.host_budget = std::uint64_t{4} << 30;
  if (options.host_budget > 0) {
    config.host_budget = options.host_budget;
    return config;
  }
  // Gradients, and pages for reading ahead and writing behind, but no room for a cache.
  const std::uint64_t pages = options.page_bytes;
  config.slot_bytes = std::uint64_t{1} << 20;
  std::uint64_t grads = 0;
  for (const engine::PlanRow& row : Engine::plan(config).rows) {
    if (row.what == "gradients" || row.what == "gradient staging" || row.what == "file buffer") grads += row.bytes[1];
  }
  config.host_budget = grads + pages;
  return config;
}

engine::StepSummary settled_step(Engine& engine, const data::Batch& batch) {
  (void)engine.train_step({&batch, 1}, 1e-4);
  const engine::StepSummary step = engine.train_step({&batch, 1}, 1e-4);
  engine.wait();
  return step;
}

}  // namespace strata::bench
