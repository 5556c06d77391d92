#include "models/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>

#include <numbers>

namespace strata::models {
namespace {

// Llama 3.1's scaling: long wavelengths are divided by the factor, short ones kept, those between interpolated.
// As _compute_llama3_parameters in transformers/modeling_rope_utils.py.
at::Tensor scale_llama3(const at::Tensor& frequencies, const hf::RopeConfig& config) {
  const double original = static_cast<double>(config.original_max_position_embeddings);
  const double longest = original / config.low_freq_factor;
  const double shortest = original / config.high_freq_factor;
  const at::Tensor wavelength = 2.0 * std::numbers::pi / frequencies;
  const at::Tensor smooth =
      (original / wavelength - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
  const at::Tensor divided = frequencies / config.factor;
  const at::Tensor between = (1.0 - smooth) * frequencies / config.factor + smooth * frequencies;
  return at::where(wavelength > longest, divided, at::where(wavelength < shortest, frequencies, between));
}

}  // namespace

at::Tensor rope_frequencies(const hf::RopeConfig& config, std::int64_t head_dim) {
  // Su et al., RoFormer, section 3.2.2: theta^(-2i/d). In torch's fp32 pow, because an ulp here is an angle error that
  // grows with the position, and checkpoints were trained with these bits.
  const at::Tensor exponents = at::arange(0, head_dim, 2, at::kFloat) / static_cast<double>(head_dim);
  const at::Tensor frequencies = 1.0 / at::pow(config.theta, exponents);
  switch (config.type) {
    case hf::RopeType::Default:
      return frequencies;
    case hf::RopeType::Linear:
      return frequencies / config.factor;
    case hf::RopeType::Llama3:
      return scale_llama3(frequencies, config);
  }
  return frequencies;
}

RopeTable rope_table(const at::Tensor& frequencies, std::int64_t tokens) {
  const at::Tensor angles = at::outer(at::arange(0, tokens, frequencies.options()), frequencies).unsqueeze(1);
  return {angles.cos(), angles.sin()};
}

at::Tensor apply_rope(const at::Tensor& x, const RopeTable& table) {
  const at::Tensor wide = x.to(at::kFloat);
  const std::int64_t half = x.size(-1) / 2;
  const at::Tensor first = wide.narrow(-1, 0, half);
  const at::Tensor second = wide.narrow(-1, half, half);
  return at::cat({first * table.cos - second * table.sin, second * table.cos + first * table.sin}, -1)
      .to(x.scalar_type());
}

}  // namespace strata::models
