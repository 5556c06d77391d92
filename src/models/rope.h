// Rotary position embeddings, computed in fp32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "hf/model_config.h"

namespace strata::models {

// Cosines and sines of the angles of T positions. Both [T, 1, head_dim / 2] fp32; the middle dimension spans heads.
struct RopeTable {
  at::Tensor cos;
  at::Tensor sin;
};

// Angular frequencies, [head_dim / 2] fp32: the default ones, or scaled as the config says.
at::Tensor rope_frequencies(const hf::RopeConfig& config, std::int64_t head_dim);

// Of rope_frequencies(), on their device.
RopeTable rope_table(const at::Tensor& frequencies, std::int64_t tokens);

// Rotates x [B, T, heads, head_dim]; element i is paired with element i + head_dim / 2. Returns x's type.
at::Tensor apply_rope(const at::Tensor& x, const RopeTable& table);

}  // namespace strata::models
