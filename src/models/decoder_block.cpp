#include "models/decoder_block.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>

#include <optional>
#include <string>

#include "core/error.h"
#include "models/attention.h"
#include "models/rms_norm.h"
#include "models/rope.h"

namespace strata::models {

// Tensors that a model does not have stay undefined.
struct DecoderBlock::Weights {
  at::Tensor input_norm;
  at::Tensor q, q_bias, k, k_bias, v, v_bias;
  at::Tensor q_norm, k_norm;
  at::Tensor o, o_bias;
  at::Tensor post_attention_norm;
  at::Tensor gate, gate_bias, up, up_bias, down, down_bias;
};

zero::GroupDecl DecoderBlock::declare(const hf::ModelConfig& config, std::size_t index) {
  zero::GroupDecl group{"model.layers." + std::to_string(index), {}};
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t inner = config.intermediate_size;
  const std::int64_t q_size = config.num_attention_heads * config.head_dim;
  const std::int64_t kv_size = config.num_key_value_heads * config.head_dim;
  const auto norm = [&](const std::string& name, std::int64_t size) {
    group.params.push_back({group.name + "." + name + ".weight", {size}, false});
  };
  const auto linear = [&](const std::string& name, std::int64_t outputs, std::int64_t inputs, bool has_bias) {
    group.params.push_back({group.name + "." + name + ".weight", {outputs, inputs}, true});
    if (has_bias) group.params.push_back({group.name + "." + name + ".bias", {outputs}, false});
  };
  norm("input_layernorm", hidden);
  linear("self_attn.q_proj", q_size, hidden, config.qkv_bias);
  linear("self_attn.k_proj", kv_size, hidden, config.qkv_bias);
  linear("self_attn.v_proj", kv_size, hidden, config.qkv_bias);
  if (config.qk_norm) norm("self_attn.q_norm", config.head_dim);
  if (config.qk_norm) norm("self_attn.k_norm", config.head_dim);
  linear("self_attn.o_proj", hidden, q_size, config.o_bias);
  norm("post_attention_layernorm", hidden);
  linear("mlp.gate_proj", inner, hidden, config.mlp_bias);
  linear("mlp.up_proj", inner, hidden, config.mlp_bias);
  linear("mlp.down_proj", hidden, inner, config.mlp_bias);
  return group;
}

DecoderBlock::Weights DecoderBlock::bind(zero::LayerParams params) const {
  std::size_t next = 0;
  const auto take = [&](bool present) {
    if (!present) return at::Tensor();
    STRATA_EXPECTS(next < params.size(), "a block was given fewer parameters than it declares");
    return params[next++];
  };
  // The order of declare(). Braced initialisers are evaluated from left to right.
  const bool qkv = config_.qkv_bias;
  const bool mlp = config_.mlp_bias;
  const bool qk_norm = config_.qk_norm;
  return {take(true),
          take(true),
          take(qkv),
          take(true),
          take(qkv),
          take(true),
          take(qkv),
          take(qk_norm),
          take(qk_norm),
          take(true),
          take(config_.o_bias),
          take(true),
          take(true),
          take(mlp),
          take(true),
          take(mlp),
          take(true),
          take(mlp)};
}

DecoderBlock::DecoderBlock(const hf::ModelConfig& config, const DecoderOptions& options, std::size_t index,
                           std::size_t group)
    : config_(config),
      window_(config.sliding_window.empty() ? 0 : config.sliding_window.at(index)),
      groups_{group},
      compute_(compute_type(options)),
      frequencies_(rope_frequencies(config.rope, config.head_dim)) {}

at::Tensor DecoderBlock::linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const {
  return at::linear(x, weight.to(compute_),
                    bias.defined() ? std::optional<at::Tensor>(bias.to(compute_)) : std::nullopt);
}

at::Tensor DecoderBlock::attention(const at::Tensor& x, const zero::MicroBatch& batch, const Weights& w) {
  const std::int64_t sequences = batch.tokens.size(0);
  const std::int64_t tokens = batch.tokens.size(1);
  const auto heads = [&](const at::Tensor& y) { return y.view({sequences, tokens, -1, config_.head_dim}); };
  // To a GPU once: a copy out of ordinary memory waits for all that is queued there.
  if (frequencies_.device() != x.device()) frequencies_ = frequencies_.to(x.device());
  // The table is rebuilt for each use: T * head_dim values beside T * hidden * hidden products, and no state to
  // invalidate.
  const RopeTable table = rope_table(frequencies_, tokens);
  const auto rotate = [&](const at::Tensor& y, const at::Tensor& norm) {
    return apply_rope(norm.defined() ? rms_norm(y, norm, config_.rms_norm_eps) : y, table).transpose(1, 2);
  };
  const at::Tensor q = rotate(heads(linear(x, w.q, w.q_bias)), w.q_norm);
  const at::Tensor k = rotate(heads(linear(x, w.k, w.k_bias)), w.k_norm);
  const at::Tensor v = heads(linear(x, w.v, w.v_bias)).transpose(1, 2);
  return linear(causal_attention(q, k, v, window_).view({x.size(0), -1}), w.o, w.o_bias);
}

at::Tensor DecoderBlock::swiglu(const at::Tensor& x, const Weights& w) const {
  // Shazeer 2020, GLU Variants Improve Transformer, equation 6.
  return linear(at::silu(linear(x, w.gate, w.gate_bias)) * linear(x, w.up, w.up_bias), w.down, w.down_bias);
}

at::Tensor DecoderBlock::forward(const zero::MicroBatch& batch, const at::Tensor& hidden, zero::LayerParams params) {
  const Weights w = bind(params);
  const at::Tensor x = hidden.reshape({-1, config_.hidden_size});
  const at::Tensor attended = x + attention(rms_norm(x, w.input_norm, config_.rms_norm_eps), batch, w);
  const at::Tensor out = attended + swiglu(rms_norm(attended, w.post_attention_norm, config_.rms_norm_eps), w);
  return out.view(hidden.sizes());
}

}  // namespace strata::models
