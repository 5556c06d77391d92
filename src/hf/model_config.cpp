// Defaults and key names follow transformers 5.24 (models/{llama,mistral,qwen2,qwen3}/configuration_*.py and
// modeling_rope_utils.py), which also reads the files that 4.x wrote.
#include "hf/model_config.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "hf/config_fields.h"
#include "hf/file_handle.h"
#include "hf/strict_json.h"

namespace strata::hf {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxConfigBytes = 16'000'000;

// What a class assumes when a key is absent.
struct ClassDefaults {
  std::string_view model_type;
  Architecture architecture;
  std::int64_t vocab_size;
  std::int64_t intermediate_size;
  std::int64_t num_key_value_heads;  // 0 = as many as attention heads
  std::int64_t head_dim;             // 0 = hidden_size / num_attention_heads
  std::int64_t max_position_embeddings;
  std::int64_t bos_token_id;  // -1 = none
  std::int64_t eos_token_id;  // -1 = none
};

constexpr std::array kClasses = {
    ClassDefaults{"llama", Architecture::Llama, 32000, 11008, 0, 0, 2048, 1, 2},
    ClassDefaults{"mistral", Architecture::Mistral, 32000, 14336, 8, 0, 131072, 1, 2},
    ClassDefaults{"qwen2", Architecture::Qwen2, 151936, 22016, 32, 0, 32768, -1, -1},
    ClassDefaults{"qwen3", Architecture::Qwen3, 151936, 22016, 32, 128, 32768, -1, -1},
};

const ClassDefaults& class_of(const ConfigFields& fields) {
  const std::string supported = "supported model types: llama, mistral, qwen2, qwen3";
  if (!fields.given("model_type")) fields.refuse("model_type", supported);
  const std::string model_type = fields.text("model_type", "");
  for (const ClassDefaults& defaults : kClasses) {
    if (defaults.model_type == model_type) return defaults;
  }
  fields.refuse("model_type", supported);
}

// Keys whose effect this program cannot honour; ignoring one would train another model than the one described.
void refuse_unsupported(const ConfigFields& fields) {
  for (const auto& [key, value] : fields.object().items()) {
    const bool dropout = key.find("dropout") != std::string::npos || key.ends_with("pdrop");
    if (!dropout || key.starts_with("classifier") || value.is_null()) continue;
    if (!value.is_number() || value.get<double>() != 0.0) fields.refuse(key, "only 0 is supported");
  }
  const std::string activation = fields.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") fields.refuse("hidden_act", "supported: silu");
  if (fields.given("quantization_config")) {
    fields.refuse("quantization_config", "quantized weights cannot be trained: use the unquantized model");
  }
  if (fields.given("partial_rotary_factor") && fields.required_positive("partial_rotary_factor") != 1.0) {
    fields.refuse("partial_rotary_factor", "only 1 is supported");
  }
  if (!fields.given("architectures")) return;
  const json& architectures = fields.at("architectures");
  if (!architectures.is_array()) fields.refuse("architectures", "expected a list of strings");
  if (architectures.empty()) return;
  const json& first = architectures.front();
  if (!first.is_string() || !first.get_ref<const std::string&>().ends_with("ForCausalLM")) {
    fields.refuse("architectures",
                  "supported: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM");
  }
}

void read_sizes(const ConfigFields& fields, const ClassDefaults& defaults, ModelConfig& config) {
  config.vocab_size = fields.size("vocab_size", defaults.vocab_size);
  config.hidden_size = fields.size("hidden_size", 4096);
  config.intermediate_size = fields.size("intermediate_size", defaults.intermediate_size);
  config.num_hidden_layers = fields.size("num_hidden_layers", 32, kMaxLayers);
  config.num_attention_heads = fields.size("num_attention_heads", 32);
  config.max_position_embeddings = fields.size("max_position_embeddings", defaults.max_position_embeddings);
  const std::int64_t heads = config.num_attention_heads;

  const std::int64_t default_kv_heads = defaults.num_key_value_heads > 0 ? defaults.num_key_value_heads : heads;
  config.num_key_value_heads = fields.optional_size("num_key_value_heads", default_kv_heads).value_or(heads);
  if (heads % config.num_key_value_heads != 0) {
    fields.refuse("num_key_value_heads", std::to_string(config.num_key_value_heads) +
                                             " does not divide num_attention_heads = " + std::to_string(heads));
  }

  const bool qwen3 = defaults.architecture == Architecture::Qwen3;
  const std::optional<std::int64_t> default_head_dim = qwen3 ? std::optional(defaults.head_dim) : std::nullopt;
  const std::optional<std::int64_t> head_dim = fields.optional_size("head_dim", default_head_dim);
  if (qwen3 && !head_dim) fields.refuse("head_dim", "expected a whole number for qwen3");
  if (!head_dim && config.hidden_size % heads != 0) {
    fields.refuse("hidden_size", std::to_string(config.hidden_size) + " is not a multiple of num_attention_heads = " +
                                     std::to_string(heads) + " and head_dim is not given");
  }
  config.head_dim = head_dim.value_or(config.hidden_size / heads);
  if (config.head_dim % 2 != 0) {
    fields.refuse("head_dim", std::to_string(config.head_dim) + " is odd; rotary embedding needs an even number");
  }
}

void read_features(const ConfigFields& fields, ModelConfig& config) {
  const Architecture architecture = config.architecture;
  config.rms_norm_eps = fields.positive("rms_norm_eps", 1e-6);
  config.tie_word_embeddings = fields.flag("tie_word_embeddings", false);
  config.qk_norm = architecture == Architecture::Qwen3;
  if (architecture == Architecture::Llama || architecture == Architecture::Qwen3) {
    config.qkv_bias = fields.flag("attention_bias", false);
    config.o_bias = config.qkv_bias;
  }
  if (architecture == Architecture::Qwen2) config.qkv_bias = true;
  if (architecture == Architecture::Llama) config.mlp_bias = fields.flag("mlp_bias", false);
}

std::int64_t window_of_layer_type(const ConfigFields& fields, const json& layer_type, std::int64_t window) {
  if (layer_type == "full_attention") return 0;
  if (layer_type != "sliding_attention") {
    fields.refuse("layer_types", "supported entries: full_attention, sliding_attention");
  }
  if (window == 0) {
    fields.refuse("layer_types", "sliding_attention needs use_sliding_window = true and a sliding_window");
  }
  return window;
}

void read_sliding_window(const ConfigFields& fields, ModelConfig& config) {
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
  config.sliding_window.assign(layers, 0);
  if (config.architecture == Architecture::Llama) return;
  const std::int64_t window = fields.optional_size("sliding_window", 4096).value_or(0);
  if (config.architecture == Architecture::Mistral) {
    config.sliding_window.assign(layers, window);
    return;
  }
  const std::int64_t used = fields.flag("use_sliding_window", false) ? window : 0;
  if (fields.given("layer_types")) {
    const json& layer_types = fields.at("layer_types");
    if (!layer_types.is_array() || layer_types.size() != layers) {
      fields.refuse("layer_types", "expected a list of num_hidden_layers = " + std::to_string(layers) + " strings");
    }
    for (std::size_t i = 0; i < layers; ++i) {
      config.sliding_window[i] = window_of_layer_type(fields, layer_types[i], used);
    }
    return;
  }
  // 0 means that every layer slides, so this one is not a size.
  const bool all = fields.has("max_window_layers") && fields.at("max_window_layers") == 0;
  const std::int64_t first = all ? 0 : fields.size("max_window_layers", 28);
  for (std::size_t i = static_cast<std::size_t>(first); i < layers; ++i) config.sliding_window[i] = used;
}

// The object that describes rotary scaling, in either dialect; transformers lets the older key win when it is not
// empty.
const json* rope_object(const ConfigFields& fields) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!fields.given(key)) continue;
    if (!fields.at(key).is_object()) fields.refuse(key, "expected an object or null");
    if (!fields.at(key).empty()) return &fields.at(key);
  }
  return nullptr;
}

void read_llama3(const ConfigFields& fields, const ConfigFields& rope, const ModelConfig& config, RopeConfig& result) {
  result.factor = rope.required_positive("factor");
  result.low_freq_factor = rope.required_positive("low_freq_factor");
  result.high_freq_factor = rope.required_positive("high_freq_factor");
  if (result.high_freq_factor <= result.low_freq_factor) {
    rope.refuse("high_freq_factor", "expected more than low_freq_factor = " + std::to_string(result.low_freq_factor));
  }
  result.original_max_position_embeddings =
      rope.size("original_max_position_embeddings", config.max_position_embeddings);
  if (fields.given("original_max_position_embeddings")) {
    result.original_max_position_embeddings = fields.size("original_max_position_embeddings", 0);
  }
}

void read_rope(const ConfigFields& fields, ModelConfig& config) {
  config.rope.theta = fields.given("rope_theta") ? fields.required_positive("rope_theta") : 10000.0;
  const json* object = rope_object(fields);
  if (object == nullptr) return;
  const ConfigFields rope(*object, fields.where() + ": rope parameters");
  config.rope.theta = rope.positive("rope_theta", config.rope.theta);
  if (rope.given("partial_rotary_factor") && rope.required_positive("partial_rotary_factor") != 1.0) {
    rope.refuse("partial_rotary_factor", "only 1 is supported");
  }
  for (const auto& [key, value] : object->items()) {
    if (value.is_object()) rope.refuse(key, "rope parameters per layer type are not supported");
  }
  const std::string key = rope.has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.text(key, "default");
  if (type == "default") return;
  if (type == "linear") {
    config.rope.type = RopeType::Linear;
    config.rope.factor = rope.required_positive("factor");
  } else if (type == "llama3") {
    config.rope.type = RopeType::Llama3;
    read_llama3(fields, rope, config, config.rope);
  } else {
    rope.refuse(key, "supported: default, linear, llama3");
  }
}

std::optional<DType> read_dtype(const ConfigFields& fields) {
  const std::string key = fields.given("dtype") ? "dtype" : "torch_dtype";
  if (!fields.given(key)) return std::nullopt;
  std::string name = fields.text(key, "");
  if (name.starts_with("torch.")) name = name.substr(6);
  if (name == "float32") return DType::F32;
  if (name == "bfloat16") return DType::BF16;
  if (name == "float16") return DType::F16;
  fields.refuse(key, "supported: float32, bfloat16, float16");
}

std::int64_t token_id(const ConfigFields& fields, const std::string& key, const json& value) {
  const std::string expected = "expected token ids: whole numbers from 0";
  if (!value.is_number_integer()) fields.refuse(key, expected);
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMaxSize)) {
    fields.refuse(key, expected);
  }
  const auto id = value.get<std::int64_t>();
  if (id < 0) fields.refuse(key, expected);
  return id;
}

void read_special_tokens(const ConfigFields& fields, const ClassDefaults& defaults, ModelConfig& config) {
  if (!fields.has("bos_token_id")) {
    if (defaults.bos_token_id >= 0) config.bos_token_id = defaults.bos_token_id;
  } else if (fields.given("bos_token_id")) {
    config.bos_token_id = token_id(fields, "bos_token_id", fields.at("bos_token_id"));
  }
  if (!fields.has("eos_token_id")) {
    if (defaults.eos_token_id >= 0) config.eos_token_ids = {defaults.eos_token_id};
    return;
  }
  const json& eos = fields.at("eos_token_id");
  if (eos.is_null()) return;
  if (!eos.is_array()) {
    config.eos_token_ids = {token_id(fields, "eos_token_id", eos)};
    return;
  }
  for (const json& id : eos) config.eos_token_ids.push_back(token_id(fields, "eos_token_id", id));
}

}  // namespace

ModelConfig parse_model_config(const std::string& text, const std::string& where) {
  const json object = parse_strict_json<json>(text, where);
  if (!object.is_object()) throw DataError(where + ": expected a JSON object");
  const ConfigFields fields(object, where);
  const ClassDefaults& defaults = class_of(fields);
  refuse_unsupported(fields);
  ModelConfig config;
  config.architecture = defaults.architecture;
  read_sizes(fields, defaults, config);
  read_features(fields, config);
  read_sliding_window(fields, config);
  read_rope(fields, config);
  config.dtype = read_dtype(fields);
  read_special_tokens(fields, defaults, config);
  return config;
}

ModelConfig read_model_config(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw DataError(folder.string() +
                    ": no such folder; give a local Hugging Face model folder (nothing is downloaded)");
  }
  const std::filesystem::path file = folder / "config.json";
  return parse_model_config(read_text_file(file, kMaxConfigBytes), file.string());
}

}  // namespace strata::hf
