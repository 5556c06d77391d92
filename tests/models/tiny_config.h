// A decoder of a few thousand parameters with sizes that are multiples of nothing.
#pragma once

#include <cstddef>

#include "hf/model_config.h"

namespace strata::models {

inline hf::ModelConfig tiny_config() {
  hf::ModelConfig config;
  config.vocab_size = 101;
  config.hidden_size = 28;
  config.intermediate_size = 45;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 6;
  config.max_position_embeddings = 256;
  config.sliding_window.assign(2, 0);
  return config;
}

}  // namespace strata::models
