// A model of two small layers, batches for it, and what a test wants to know about an engine that trains it.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace strata::test {

inline constexpr std::int64_t kTinyVocabulary = 257;
inline constexpr std::int64_t kTinyTokens = 16;

// Writes config.json of a small Llama; its weights are drawn, so nothing else is needed. A block's fp32 states take
// more than the smallest slot, so that they are paged in pieces. `more` holds further keys,
// each behind a comma.
inline void write_tiny_model(const std::filesystem::path& folder, const std::string& more = {},
                             int layers = 2) {
  std::filesystem::create_directories(folder);
  std::ofstream out(folder / "config.json");
  out << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": )" << kTinyVocabulary
      << R"(, "hidden_size": 64, "intermediate_size": 400, "num_hidden_layers": )" << layers << R"(, "num_attention_heads": 4,
  "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16")"
      << more << "}\n";
}

// Settings that do not depend on the machine.
inline engine::EngineConfig tiny_engine(const std::filesystem::path& model) {
  engine::EngineConfig config;
  config.model = model;
  config.random_weights = true;
  config.compute = engine::Compute::Fp32;
  config.loss_chunk_tokens = 16;
  config.batch_size = 2;
  config.max_tokens = kTinyTokens;
  config.adamw.weight_decay = 0.1;
  config.device_budget = std::uint64_t{64} << 20;
  config.host_budget = std::uint64_t{64} << 20;
  config.adam_threads = 1;
  config.compute_threads = 1;
  return config;
}

// All of it at home on one tier, gradients beside the host's at the farthest, in small pages.
inline engine::EngineConfig tiny_engine_on(offload::TierKind home, const std::filesystem::path& model,
                                           const std::filesystem::path& drive) {
  using offload::TierKind;
  engine::EngineConfig config = tiny_engine(model);
  config.param_home = config.optimizer_home = home;
  config.grad_home = home == TierKind::Device ? TierKind::Device : TierKind::Host;
  config.nvme_paths = {drive};
  config.nvme_budget = std::uint64_t{64} << 20;
  config.slot_bytes = std::uint64_t{256} << 10;
  return config;
}

// Two sequences of random tokens; the last position of each has nothing to predict.
inline data::Batch tiny_batch(std::uint64_t seed, std::int64_t tokens_each = kTinyTokens) {
  std::mt19937_64 random(seed);
  data::Batch batch{2, tokens_each, {}, {}, 0};
  for (std::int64_t i = 0; i < 2 * tokens_each; ++i) {
    batch.tokens.push_back(static_cast<std::int64_t>(random() % kTinyVocabulary));
  }
  for (std::int64_t i = 0; i < 2 * tokens_each; ++i) {
    const bool last = (i + 1) % tokens_each == 0;
    batch.labels.push_back(last ? -100 : batch.tokens[static_cast<std::size_t>(i + 1)]);
    batch.target_tokens += last ? 0 : 1;
  }
  return batch;
}

// Takes `steps` updates on batches that depend on the step's number only.
inline std::vector<engine::StepSummary> train_tiny(engine::Engine& engine, int steps) {
  std::vector<engine::StepSummary> summaries;
  for (int i = 0; i < steps; ++i) {
    std::vector<data::Batch> batches;
    for (std::int64_t m = 0; m < engine.config().micro_batches; ++m) {
      const auto step = static_cast<std::uint64_t>(engine.state().step + engine.state().skipped);
      batches.push_back(tiny_batch(100 * step + static_cast<std::uint64_t>(m)));
    }
    summaries.push_back(engine.train_step(batches, 1e-2));
  }
  return summaries;
}

inline std::vector<std::string> tiny_parameter_names(const engine::Engine& engine) {
  std::vector<std::string> names{"model.embed_tokens.weight", "model.norm.weight"};
  if (!engine.model_config().tie_word_embeddings) names.push_back("lm_head.weight");
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    for (const char* part :
         {"input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
          "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      names.push_back(std::string(layer) + part + ".weight");
    }
  }
  return names;
}

// The bits of every parameter, which compare equal where values that are no numbers would not.
inline std::vector<std::uint32_t> tiny_parameter_bits(engine::Engine& engine) {
  std::vector<std::uint32_t> bits;
  for (const std::string& name : tiny_parameter_names(engine)) {
    const std::vector<float> values = engine.parameter(name);
    const std::size_t begin = bits.size();
    bits.resize(begin + values.size());
    std::memcpy(bits.data() + begin, values.data(), values.size() * sizeof(float));
  }
  return bits;
}

}  // namespace strata::test
