#include "models/activation_bound.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace strata::models {
namespace {

// torch leaves bf16 products to oneDNN where the processor has AVX-512, fp16 ones where it has AVX-512-FP16 or AMX;
// elsewhere (ARM), and for fp16 as for bf16, the scratch is assumed.
bool onednn_multiplies_16_bits() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
  return true;
#endif
}

// [Note: activation bound]
// A block's recorded forward keeps what its backward reads; backward then frees it from the end of the block to its
// start, while parameter gradients pile up until autograd::grad returns all of them. So the peak is early where
// activations are large and late where weights are. The moments counted: the product inside SwiGLU, its two
// projections, attention, the projections to q, k and v, the first norm; the loss head's chunks and its norm; the
// embedding's gradient. Block moments are those of the last block, when every layer's input is still stored. Names
// follow decoder_block.cpp; all values are bytes. N = B T positions, H hidden, I inner, Q and K the widths of all query
// and key heads, V vocabulary.
class Moments {
 public:
  Moments(const hf::ModelConfig& config, const DecoderOptions& options, std::int64_t sequences,
          std::int64_t tokens_each)
      : config_(config),
        n_(static_cast<std::uint64_t>(sequences * tokens_each)),
        t_(static_cast<std::uint64_t>(tokens_each)),
        h_(static_cast<std::uint64_t>(config.hidden_size)),
        i_(static_cast<std::uint64_t>(config.intermediate_size)),
        q_(static_cast<std::uint64_t>(config.num_attention_heads * config.head_dim)),
        k_(static_cast<std::uint64_t>(config.num_key_value_heads * config.head_dim)),
        v_(static_cast<std::uint64_t>(config.vocab_size)),
        layers_(static_cast<std::uint64_t>(config.num_hidden_layers)),
        chunk_(std::min(n_, static_cast<std::uint64_t>(options.loss_chunk_tokens))),
        act_(c10::elementSize(compute_type(options))),
        grad_(c10::elementSize(options.group_type)),
        upcast_(act_ != grad_ ? kWide : 0),
        onednn_products_(act_ != kWide && onednn_multiplies_16_bits()) {}

  std::uint64_t largest() const {
    return std::max({swiglu_product(), swiglu_projections(), attention(), rotary(), qkv_projections(), head_chunk(),
                     head_norm(), embedding()}) +
           ids() + row_statistics() + norm_weights() + kSmallTensors;
  }
  // All that a block's backward reads: up to the product inside SwiGLU four inner tensors, and every weight's fp32
  // copy.
  std::uint64_t graph() const {
    return first_half_saved() + second_norm_saved() + 4 * inner() + upcast_ * (qkv_weights() + q_ * h_ + 3 * h_ * i_) +
           row_statistics() + norm_weights() + kSmallTensors;
  }
  // An input per layer but the first; while it waits in the middle of backward, fewer inputs and one gradient.
  std::uint64_t open_micro_batch() const { return (layers_ + 1) * hidden() + ids() + kOpenTensors; }

 private:
  static constexpr std::uint64_t kWide = 4;  // bytes of fp32
  // Statistics of a row, headers and rounding of the allocator: about 200 tensors.
  static constexpr std::uint64_t kSmallTensors = 24 << 10;
  static constexpr std::uint64_t kOpenTensors = 2 << 10;        // rounding of the allocator, per micro-batch
  static constexpr std::uint64_t kAttentionProduct = 96 << 10;  // measured: 49 KiB for the smallest product

  bool narrow() const { return act_ != kWide; }
  // oneDNN's 16-bit products repack the weight and may widen both operands and the result.
  std::uint64_t product_scratch(std::uint64_t in, std::uint64_t out) const {
    return onednn_products_ ? (in * out + n_ * (in + out)) * kWide : 0;
  }
  // The same inside attention, whose threads multiply a block of queries by a block of keys each.
  std::uint64_t attention_scratch(std::uint64_t block_q, std::uint64_t block_k) const {
    return onednn_products_ ? kAttentionProduct + block_q * block_k * kWide : 0;
  }
  std::uint64_t ids() const { return 2 * n_ * 8; }  // tokens and labels
  // One fp32 value per position from each norm, per head where q and k have norms, and a few more inside a backward.
  std::uint64_t row_statistics() const {
    const std::int64_t heads = config_.qk_norm ? config_.num_attention_heads + config_.num_key_value_heads : 0;
    return n_ * static_cast<std::uint64_t>(6 + heads) * kWide;
  }
  // A norm multiplies by an fp32 copy of its weight, which its backward reads; the last one stands for the gradients.
  std::uint64_t norm_weights() const {
    const auto heads = static_cast<std::uint64_t>(config_.qk_norm ? 2 * config_.head_dim : 0);
    return (3 * h_ + heads) * kWide;
  }
  std::uint64_t hidden() const { return n_ * h_ * act_; }
  // What a norm over `width` elements per position keeps: normalized values, and an fp32 copy of a narrow input.
  std::uint64_t norm_saved(std::uint64_t width) const { return n_ * width * (narrow() ? 2 * kWide : kWide); }
  // Gradients inside a norm's backward: of the result, the normalized values, their product with the input, and two
  // sums.
  std::uint64_t norm_backward(std::uint64_t width) const { return 4 * n_ * width * kWide; }

  // Inputs of all layers but the last one, this block's output and the gradient that arrives.
  std::uint64_t around_block() const { return (layers_ + 2) * hidden(); }
  std::uint64_t attention_saved() const {
    const std::uint64_t norms = config_.qk_norm ? norm_saved(q_ + k_) + (narrow() ? 0 : n_ * (q_ + k_) * act_) : 0;
    const bool masked = std::any_of(config_.sliding_window.begin(), config_.sliding_window.end(),
                                    [this](std::int64_t w) { return w > 0 && static_cast<std::uint64_t>(w) < t_; });
    return norms + n_ * (2 * q_ + 2 * k_) * act_                                   // q, k, v and the output
           + n_ * static_cast<std::uint64_t>(config_.num_attention_heads) * kWide  // logsumexp
           + t_ * static_cast<std::uint64_t>(config_.head_dim) * kWide             // cosines and sines
           + (masked ? t_ * t_ * act_ : 0);
  }
  // First norm with its output; attention; the residual stream between the two halves.
  std::uint64_t first_half_saved() const {
    return norm_saved(h_) + hidden() + attention_saved() + (narrow() ? 0 : hidden());
  }
  std::uint64_t second_norm_saved() const { return norm_saved(h_) + hidden(); }
  std::uint64_t inner() const { return n_ * i_ * act_; }
  std::uint64_t qkv_weights() const { return (q_ + 2 * k_) * h_; }

  // silu(gate) * up: saved gate, silu, up; gradients of the product and of both factors. W_down has its gradient.
  std::uint64_t swiglu_product() const {
    const std::uint64_t at_down = 5 * inner() + h_ * i_ * (upcast_ + act_);
    const std::uint64_t at_product = 6 * inner() + h_ * i_ * grad_;
    return around_block() + first_half_saved() + second_norm_saved() +
           std::max(at_down + product_scratch(i_, h_), at_product) + upcast_ * (qkv_weights() + q_ * h_ + 2 * h_ * i_);
  }
  // Gradients of gate and up, and of their common input from both sides. In fp32 first, when weights are upcast.
  std::uint64_t swiglu_projections() const {
    return around_block() + first_half_saved() + second_norm_saved() + inner() + 2 * hidden() + 3 * h_ * i_ * grad_ +
           product_scratch(h_, i_) + upcast_ * (qkv_weights() + q_ * h_ + h_ * i_);
  }
  std::uint64_t attention() const {
    const std::uint64_t block_q = std::min<std::uint64_t>(t_, t_ >= 768 ? 256 : t_ >= 192 ? 64 : 32);
    const std::uint64_t block_k = std::min<std::uint64_t>(t_, 512);
    const std::uint64_t per_thread =
        2 * block_q * block_k * (kWide + (narrow() ? act_ : 0)) + attention_scratch(block_q, block_k);
    const std::uint64_t gradients = n_ * (2 * q_ + 2 * k_) * act_;  // of the output, q, k, v
    return around_block() + first_half_saved() + hidden() + gradients +
           per_thread * static_cast<std::uint64_t>(at::get_num_threads()) + (3 * h_ * i_ + q_ * h_) * grad_ +
           upcast_ * qkv_weights();
  }
  // Rotation and norm of q, in fp32, after the attention's own output is freed: gradients of halves and of the whole.
  std::uint64_t rotary() const {
    return around_block() + first_half_saved() + n_ * 2 * k_ * act_ + norm_backward(q_) +
           (3 * h_ * i_ + q_ * h_) * grad_ + upcast_ * qkv_weights();
  }
  std::uint64_t qkv_projections() const {
    const std::uint64_t weights = qkv_weights() + q_ * h_ + 3 * h_ * i_;
    const std::uint64_t at_projections = hidden() + n_ * (q_ + 2 * k_) * act_ + 2 * hidden() + upcast_ * q_ * h_;
    return around_block() + norm_saved(h_) + hidden() +
           std::max(at_projections + product_scratch(h_, q_), norm_backward(h_)) + weights * grad_;
  }

  std::uint64_t around_head() const { return (layers_ + 1) * hidden() + norm_saved(h_) + hidden() + v_ * h_ * kWide; }
  // The output of the norm and its gradient; logits in fp32, and in 16 bits before or after; a chunk's product, and its
  // fp32 copy (torch converts a whole operand on the CPU before it adds).
  std::uint64_t head_chunk() const {
    const std::uint64_t logits = chunk_ * v_ * (narrow() ? kWide + act_ : kWide);
    return around_head() + hidden() + v_ * h_ * upcast_ + logits + (narrow() ? v_ * h_ * (act_ + kWide) : 0);
  }
  std::uint64_t head_norm() const { return around_head() + hidden() + norm_backward(h_); }
  std::uint64_t embedding() const { return hidden() + (narrow() ? n_ * h_ * kWide : 0) + v_ * h_ * kWide; }

  const hf::ModelConfig& config_;
  std::uint64_t n_, t_, h_, i_, q_, k_, v_, layers_, chunk_;
  std::uint64_t act_;     // bytes of one activation
  std::uint64_t grad_;    // bytes of one element of a parameter's gradient, as autograd returns it
  std::uint64_t upcast_;  // bytes per weight of its fp32 copy; 0 when weights are used as they are
  bool onednn_products_;
};

}  // namespace

std::uint64_t ActivationBound::bytes(std::int64_t sequences, std::int64_t tokens_each) const {
  return Moments(config_, options_, sequences, tokens_each).largest();
}

std::uint64_t ActivationBound::open_micro_batch_bytes(std::int64_t sequences, std::int64_t tokens_each) const {
  return Moments(config_, options_, sequences, tokens_each).open_micro_batch();
}

std::uint64_t ActivationBound::graph_bytes(std::int64_t sequences, std::int64_t tokens_each) const {
  return Moments(config_, options_, sequences, tokens_each).graph();
}

}  // namespace strata::models
