#include "models/activation_bound.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "core/bytes.h"
#include "models/gpu_attention.h"

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
// The tensors are those of the host or of a GPU; what only one of them takes: the host scratch for attention's threads
// and for oneDNN's products, and converted operands; a GPU what its attention takes (gpu_attention.h), key heads
// that are repeated for a kernel that does not share them (attention.cpp), masks padded to 16 columns, and what sorts
// tokens where the embedding's gradient and the labels' logits are added in one order. The workspace of its
// products is the allocator's part (engine/gpu_allocator.h). Assumed of a GPU: heads of at most 256 values in a
// multiple of 8.
class Moments {
 public:
  Moments(const hf::ModelConfig& config, const DecoderOptions& options, std::int64_t sequences,
          std::int64_t tokens_each)
      : config_(config),
        b_(static_cast<std::uint64_t>(sequences)),
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
        multiprocessors_(options.gpu_multiprocessors),
        onednn_products_(!on_gpu() && act_ != kWide && onednn_multiplies_16_bits()) {
    for (const std::int64_t window : config.sliding_window) {
      (window > 0 && static_cast<std::uint64_t>(window) < t_ ? any_masked_ : any_full_) = true;
    }
    if (config.sliding_window.empty()) any_full_ = true;
  }

  std::uint64_t largest() const {
    return std::max({swiglu_product(), swiglu_projections(), attention(), rotary(), qkv_projections(), head_chunk(),
                     head_norm(), embedding()}) +
           ids() + row_statistics() + norm_weights() + small_tensors();
  }
  // All that a block's backward reads: up to the product inside SwiGLU four inner tensors, and every weight's fp32
  // copy.
  std::uint64_t graph() const {
    return first_half_saved() + second_norm_saved() + 4 * inner() + upcast_ * (qkv_weights() + q_ * h_ + 3 * h_ * i_) +
           row_statistics() + norm_weights() + small_tensors();
  }
  // An input per layer but the first; while it waits in the middle of backward, fewer inputs and one gradient.
  std::uint64_t open_micro_batch() const { return (layers_ + 1) * hidden() + ids() + open_tensors(); }

 private:
  static constexpr std::uint64_t kWide = 4;                     // bytes of fp32
  static constexpr std::uint64_t kGpuBlock = 512;               // to which torch's allocator there rounds
  static constexpr std::uint64_t kAttentionProduct = 96 << 10;  // measured: 49 KiB for the smallest product

  bool on_gpu() const { return multiprocessors_ > 0; }
  bool narrow() const { return act_ != kWide; }
  // Statistics of a row, headers and rounding of the allocator: about 200 tensors.
  std::uint64_t small_tensors() const { return on_gpu() ? 200 * kGpuBlock : 24 << 10; }
  // Rounding of the allocator, per micro-batch.
  std::uint64_t open_tensors() const { return on_gpu() ? (layers_ + 3) * kGpuBlock : 2 << 10; }
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
    const std::uint64_t table = t_ * static_cast<std::uint64_t>(config_.head_dim) * kWide;  // cosines and sines
    if (on_gpu()) return norms + table + of_either_kernel([this](bool masked) { return gpu_attention_saved(masked); });
    return norms + n_ * (2 * q_ + 2 * k_) * act_                                   // q, k, v and the output
           + n_ * static_cast<std::uint64_t>(config_.num_attention_heads) * kWide  // logsumexp
           + table + (any_masked_ ? t_ * t_ * act_ : 0);
  }
  // The larger one where some layers have a mask and some have none.
  template <typename Bytes>
  std::uint64_t of_either_kernel(Bytes&& bytes) const {
    return std::max(any_masked_ ? bytes(true) : 0, any_full_ ? bytes(false) : 0);
  }
  // What causal_attention() takes on a GPU: one kernel shares key heads and takes neither masks nor fp32, the other one
  // the contrary.
  bool shares_keys(bool masked) const { return !masked && narrow(); }
  std::uint64_t gpu_keys(bool masked) const { return shares_keys(masked) ? k_ : q_; }
  std::uint64_t gpu_attention_saved(bool masked) const {
    const std::uint64_t rows = shares_keys(masked) ? t_ : align_up(t_, 32);
    return n_ * (2 * q_ + 2 * gpu_keys(masked)) * act_ +
           b_ * rows * static_cast<std::uint64_t>(config_.num_attention_heads) * kWide +
           (masked ? t_ * align_up(t_, 16) * act_ : 0);
  }
  // Gradients of the result, q, k and v, and the kernel's own; or a mask while it is made of two.
  std::uint64_t gpu_attention_backward(bool masked) const {
    const AttentionShape shape{
        .sequences = b_,
        .tokens = t_,
        .heads = static_cast<std::uint64_t>(config_.num_attention_heads),
        .key_heads =
            static_cast<std::uint64_t>(shares_keys(masked) ? config_.num_key_value_heads : config_.num_attention_heads),
        .head_dim = static_cast<std::uint64_t>(config_.head_dim),
        .element_bytes = act_,
    };
    const std::uint64_t gradients = n_ * (2 * q_ + 2 * gpu_keys(masked)) * act_;
    const std::uint64_t of_kernel =
        shares_keys(masked) ? flash_backward_bytes(shape, multiprocessors_) : efficient_backward_bytes(shape);
    return std::max(gradients + of_kernel, masked ? 2 * t_ * t_ * act_ : 0);
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
    return around_block() + first_half_saved() + hidden() +
           (on_gpu() ? of_either_kernel([this](bool masked) { return gpu_attention_backward(masked); })
                     : host_attention_backward()) +
           (3 * h_ * i_ + q_ * h_) * grad_ + upcast_ * qkv_weights();
  }
  std::uint64_t host_attention_backward() const {
    const std::uint64_t block_q = std::min<std::uint64_t>(t_, t_ >= 768 ? 256 : t_ >= 192 ? 64 : 32);
    const std::uint64_t block_k = std::min<std::uint64_t>(t_, 512);
    const std::uint64_t per_thread =
        2 * block_q * block_k * (kWide + (narrow() ? act_ : 0)) + attention_scratch(block_q, block_k);
    const std::uint64_t gradients = n_ * (2 * q_ + 2 * k_) * act_;  // of the output, q, k, v
    return gradients + per_thread * static_cast<std::uint64_t>(at::get_num_threads());
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
  // fp32 copy (torch converts a whole operand on the CPU before it adds). On a GPU the gradient of the labels' logits
  // is added in one order, by sorted indices.
  std::uint64_t head_chunk() const {
    const std::uint64_t logits = chunk_ * v_ * (narrow() ? kWide + act_ : kWide);
    const std::uint64_t product = narrow() ? v_ * h_ * (act_ + (on_gpu() ? 0 : kWide)) : 0;
    return around_head() + hidden() + v_ * h_ * upcast_ + logits + product + (on_gpu() ? sorting(chunk_) : 0);
  }
  std::uint64_t head_norm() const { return around_head() + hidden() + norm_backward(h_); }
  std::uint64_t embedding() const {
    return hidden() + (narrow() ? n_ * h_ * kWide : 0) + v_ * h_ * kWide + (on_gpu() ? sorting(n_) : 0);
  }
  // Indices of 8 bytes before and after a sort, their order likewise, its scratch, and bounds of the runs.
  static std::uint64_t sorting(std::uint64_t positions) { return 10 * positions * 8; }

  const hf::ModelConfig& config_;
  std::uint64_t b_, n_, t_, h_, i_, q_, k_, v_, layers_, chunk_;
  std::uint64_t act_;              // bytes of one activation
  std::uint64_t grad_;             // bytes of one element of a parameter's gradient, as autograd returns it
  std::uint64_t upcast_;           // bytes per weight of its fp32 copy; 0 when weights are used as they are
  std::uint64_t multiprocessors_;  // 0: of no GPU
  bool onednn_products_;
  bool any_masked_ = false;  // layers whose window is smaller than T
  bool any_full_ = false;    // layers without such a window
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
