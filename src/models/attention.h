// Causal grouped-query attention, full or within a sliding window.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace strata::models {

// [T, T] of `type`: 0 where query t may see key s (t - window < s <= t), minus infinity elsewhere.
at::Tensor sliding_window_mask(std::int64_t tokens, std::int64_t window, const at::TensorOptions& type);

// q [B, heads, T, head_dim], k and v [B, kv_heads, T, head_dim]; query head i reads key head i / (heads / kv_heads).
// window == 0 is full causal attention. Sequences are padded on the right, so causality alone hides padding from
// tokens. Returns [B, T, heads * head_dim].
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, std::int64_t window);

}  // namespace strata::models
