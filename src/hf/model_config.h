// config.json of a Hugging Face folder, in both dialects, read into one description of a decoder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace strata::hf {

enum class Architecture : std::uint8_t { Llama, Mistral, Qwen2, Qwen3 };
enum class RopeType : std::uint8_t { Default, Linear, Llama3 };

struct RopeConfig {
  RopeType type = RopeType::Default;
  double theta = 10000.0;
  double factor = 1.0;                                   // linear, llama3
  double low_freq_factor = 1.0;                          // llama3
  double high_freq_factor = 4.0;                         // llama3
  std::int64_t original_max_position_embeddings = 8192;  // llama3
};

struct ModelConfig {
  Architecture architecture = Architecture::Llama;
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;  // explicit, or hidden_size / num_attention_heads
  std::int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;  // biases on q, k, v
  bool o_bias = false;    // bias on the attention output projection
  bool mlp_bias = false;
  bool qk_norm = false;                      // RMSNorm over head_dim on q and k before RoPE (Qwen3)
  std::vector<std::int64_t> sliding_window;  // per layer; 0 = full attention; size num_hidden_layers
  RopeConfig rope;
  std::optional<DType> dtype;               // torch_dtype / dtype; absent when the file does not say
  std::vector<std::int64_t> eos_token_ids;  // may be empty
  std::optional<std::int64_t> bos_token_id;
};

// Reads and checks `folder`/config.json. Defaults of absent keys are those of the model class in transformers.
// Throws: DataError for a missing or malformed file, an unknown model_type or rope type, or a value that cannot be
// honoured (dropout other than 0, an unsupported activation), each naming the key and what is supported.
ModelConfig read_model_config(const std::filesystem::path& folder);
// The same from the text of a config.json; `where` names it in errors.
ModelConfig parse_model_config(const std::string& json, const std::string& where);

}  // namespace strata::hf
