#include "models/attention.h"

#include <ATen/ops/full.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <limits>
#include <optional>

namespace strata::models {

at::Tensor sliding_window_mask(std::int64_t tokens, std::int64_t window, const at::TensorOptions& type) {
  const double hidden = -std::numeric_limits<double>::infinity();
  // Minus infinity above the diagonal, plus minus infinity below the window: triu and tril leave zero on their other
  // side.
  at::Tensor mask = at::full({tokens, tokens}, hidden, type);
  mask.triu_(1);
  if (tokens > window) mask.add_(at::full({tokens, tokens}, hidden, type).tril_(-window));
  return mask;
}

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, std::int64_t window) {
  const std::int64_t sequences = q.size(0);
  const std::int64_t tokens = q.size(2);
  std::optional<at::Tensor> mask;
  if (window > 0 && window < tokens) mask = sliding_window_mask(tokens, window, q.options());
  // The flash kernel of the CPU is taken for both forms: it holds blocks of scores and never [B, heads, T, T], shares
  // key heads without copies, and gives each (sequence, head) to one thread, so its bits do not depend on threads.
  // Of the kernels for a GPU the one that shares key heads takes neither a mask nor fp32, and what would be left holds
  // all scores: there each query head gets its key.
  const bool shares = !q.is_cuda() || (!mask && q.scalar_type() != at::kFloat);
  const std::int64_t each = shares ? 1 : q.size(1) / k.size(1);
  const at::Tensor out = at::scaled_dot_product_attention(
      q, each == 1 ? k : k.repeat_interleave(each, 1), each == 1 ? v : v.repeat_interleave(each, 1), mask,
      /*dropout_p=*/0.0, /*is_causal=*/!mask, /*scale=*/std::nullopt, /*enable_gqa=*/each == 1);
  return out.transpose(1, 2).reshape({sequences, tokens, -1});
}

}  // namespace strata::models
