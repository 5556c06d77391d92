// Reads a Hugging Face folder and writes it again, so that Python's libraries can judge both ends.
//   rewrite_folder IN OUT MAX_SHARD_BYTES
// Prints what it understood of config.json as one JSON object.
#include <exception>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hf/export.h"
#include "hf/model_config.h"
#include "hf/safetensors.h"

namespace {

using namespace strata;

nlohmann::json description(const hf::ModelConfig& config) {
  return {{"vocab_size", config.vocab_size},
          {"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"num_hidden_layers", config.num_hidden_layers},
          {"num_attention_heads", config.num_attention_heads},
          {"num_key_value_heads", config.num_key_value_heads},
          {"head_dim", config.head_dim},
          {"max_position_embeddings", config.max_position_embeddings},
          {"rms_norm_eps", config.rms_norm_eps},
          {"tie_word_embeddings", config.tie_word_embeddings},
          {"rope_theta", config.rope.theta},
          {"rope_type", static_cast<int>(config.rope.type)},
          {"rope_factor", config.rope.factor},
          {"sliding_window", config.sliding_window},
          {"eos_token_ids", config.eos_token_ids}};
}

void rewrite(const std::filesystem::path& in, const std::filesystem::path& out, std::uint64_t max_shard_bytes) {
  const hf::ModelConfig config = hf::read_model_config(in);
  const hf::TensorCatalog catalog = hf::TensorCatalog::open_folder(in);
  std::vector<hf::TensorToWrite> tensors;
  for (const auto& [name, tensor] : catalog.tensors()) tensors.push_back({name, tensor.dtype, tensor.shape});
  const auto produce = [&](std::size_t i, std::uint64_t offset_bytes, std::span<std::byte> destination) {
    catalog.read(*catalog.find(tensors[i].name), offset_bytes, destination);
  };
  std::vector<std::byte> buffer(1000);
  hf::write_safetensors(out, tensors, produce, buffer, {.stem = "model", .max_shard_bytes = max_shard_bytes});
  hf::copy_folder_files(in, out);
  hf::write_config(in / "config.json", out, tensors.front().dtype);
  std::cout << description(config) << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "rewrite_folder IN OUT MAX_SHARD_BYTES\n";
    return 2;
  }
  try {
    rewrite(argv[1], argv[2], std::stoull(argv[3]));
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
