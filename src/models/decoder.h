// The decoder of Llama 2 and 3, Mistral, Qwen2 and Qwen3 as Layers.
#pragma once

#include <memory>

#include "hf/model_config.h"
#include "models/decoder_options.h"
#include "zero/layer.h"

namespace strata::models {

// Groups, in the order in which forward first needs them: "model.embed_tokens", one "model.layers.N" per block, "head".
// Parameters carry the names of the Hugging Face checkpoint. With tied embeddings the loss layer names "head" and
// "model.embed_tokens"; otherwise "head" holds lm_head.weight too.
// Throws: DataError when head counts or head_dim do not fit together; ConfigError for options that are not supported,
// as freeze() does too.
std::unique_ptr<zero::Model> make_decoder(const hf::ModelConfig& config, const DecoderOptions& options);

}  // namespace strata::models
