// A shard for tests of optimizers, and the definition of a step on it.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/optimizer_config.h"
#include "core/state_encodings.h"
#include "support/guarded_array.h"

namespace strata::test {

inline float decoded(TensorSpan span, std::size_t i) {
  if (span.dtype == DType::F32) return span.as<float>()[i];
  const std::uint16_t bits = span.as<std::uint16_t>()[i];
  return span.dtype == DType::BF16 ? bf16_to_float(bits) : half_to_float(bits);
}

inline void encode(TensorSpan span, std::size_t i, float value) {
  if (span.dtype == DType::F32) span.as<float>()[i] = value;
  if (span.dtype == DType::BF16) span.as<std::uint16_t>()[i] = float_to_bf16(value);
  if (span.dtype == DType::F16) span.as<std::uint16_t>()[i] = float_to_half(value);
}

// Decodes and encodes states element by element, from core/state_encodings.h.
inline std::vector<float> decoded_moment(MomentRange range, std::span<const TensorSpan> stored) {
  std::vector<float> values(stored[0].numel);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (stored[0].dtype == DType::U8) {
      const std::uint8_t code = stored[0].as<std::uint8_t>()[i];
      const float scale = stored[1].as<float>()[i / kScaleBlock];
      values[i] = range == MomentRange::Signed ? decode_signed(code, scale) : decode_not_negative(code, scale);
    } else {
      values[i] = decoded(stored[0], i);
    }
  }
  return values;
}

inline void encode_blocks(MomentRange range, std::span<const TensorSpan> stored, const std::vector<float>& values) {
  for (std::size_t first = 0; first < values.size(); first += kScaleBlock) {
    const std::size_t end = std::min(values.size(), first + kScaleBlock);
    std::uint32_t largest = 0;
    for (std::size_t i = first; i < end; ++i) largest = std::max(largest, float_bits(values[i]) & 0x7fffffffu);
    const BlockScale scale = block_scale(largest);
    stored[1].as<float>()[first / kScaleBlock] = scale.stored;
    for (std::size_t i = first; i < end; ++i) {
      stored[0].as<std::uint8_t>()[i] = range == MomentRange::Signed ? encode_signed(values[i], scale.inverse)
                                                                     : encode_not_negative(values[i], scale.inverse);
    }
  }
}

// A shard with gradient and states, random but plausible, `shift` elements away from alignment, guards around every
// array. Elements outside `segments`, when any are given, hold zeros, as in a flat layout.
class Shard {
 public:
  Shard(DType param, DType grad, std::size_t numel, std::size_t shift = 0, unsigned seed = 1)
      : Shard(OptimizerConfig{}, param, grad, numel, shift, seed) {}

  Shard(const OptimizerConfig& config, DType param, DType grad, std::size_t numel, std::size_t shift = 0,
        unsigned seed = 1, std::span<const Segment> segments = {})
      : config_(config) {
    arrays_.emplace_back(param, numel, shift);
    arrays_.emplace_back(grad, numel, shift);
    for (const StateSpec& spec : state_specs(config, param)) {
      arrays_.emplace_back(spec.dtype, spec.values_for(numel), shift);
      states_.push_back(arrays_.back().span());
    }
    std::vector<bool> used(numel, segments.empty());
    for (const Segment& segment : segments)
      std::fill_n(used.begin() + static_cast<long>(segment.offset), segment.numel, true);
    fill(used, seed);
  }
  Shard(Shard&&) = default;

  TensorSpan param() const { return arrays_[0].span(); }
  TensorSpan grad() const { return arrays_[1].span(); }
  // The fp32 master, or the remainder.
  TensorSpan master() const { return param().dtype == DType::F32 ? param() : states_.front(); }
  // Moment k as state_specs lists it: one span, or codes and scales.
  std::span<const TensorSpan> moment(std::size_t k) const {
    const std::size_t spans = config_.moments == MomentEncoding::Block8 ? 2 : 1;
    return std::span(states_).subspan((param().dtype == DType::F32 ? 0 : 1) + spans * k, spans);
  }
  TensorSpan exp_avg() const { return moment(0)[0]; }
  TensorSpan exp_avg_sq() const { return moment(1)[0]; }
  const OptimizerConfig& config() const { return config_; }

  ShardViews views(std::span<const Segment> segments) const { return {param(), grad(), states_, segments}; }
  bool guards_intact() const {
    return std::all_of(arrays_.begin(), arrays_.end(), [](const GuardedArray& array) { return array.guards_intact(); });
  }
  bool same_bytes(const Shard& other) const {
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      if (!arrays_[i].same_elements(other.arrays_[i])) return false;
    }
    return true;
  }

 private:
  void fill(const std::vector<bool>& used, unsigned seed) {
    const std::size_t numel = used.size();
    std::minstd_rand random(seed);
    // Roughly normal: the sum of three uniform numbers of variance 1/3.
    const auto normal = [&] {
      float sum = 0;
      for (int k = 0; k < 3; ++k) sum += static_cast<float>(random()) * (2.0f / 2147483648.0f) - 1.0f;
      return sum;
    };
    std::vector<std::vector<float>> moments(moment_specs(config_.kind).size(), std::vector<float>(numel));
    for (std::size_t i = 0; i < numel; ++i) {
      const float value = used[i] ? 0.05f * normal() : 0.0f;
      encode(param(), i, value);
      encode(grad(), i, used[i] ? normal() : 0.0f);
      if (master().dtype == DType::F32) master().as<float>()[i] = value;
      if (master().dtype == DType::U16) master().as<std::uint16_t>()[i] = remainder_of(value);
      if (!moments.empty()) moments[0][i] = used[i] ? 0.1f * normal() : 0.0f;
      if (moments.size() > 1) moments[1][i] = used[i] ? std::abs(0.01f * normal()) : 0.0f;
    }
    for (std::size_t k = 0; k < moments.size(); ++k) {
      if (config_.moments == MomentEncoding::Block8) {
        encode_blocks(moment_specs(config_.kind)[k].range, moment(k), moments[k]);
      } else {
        for (std::size_t i = 0; i < numel; ++i) encode(moment(k)[0], i, moments[k][i]);
      }
    }
  }

  OptimizerConfig config_;
  std::vector<GuardedArray> arrays_;
  std::vector<TensorSpan> states_;
};

inline UpdateElement defined_update(OptimizerKind kind, const UpdateConstants& constants, UpdateElement element,
                                    float grad, float decay) {
  switch (kind) {
    case OptimizerKind::AdamW:
      return update_element<OptimizerKind::AdamW>(constants, element, grad, decay);
    case OptimizerKind::Adam:
      return update_element<OptimizerKind::Adam>(constants, element, grad, decay);
    case OptimizerKind::Lion:
      return update_element<OptimizerKind::Lion>(constants, element, grad, decay);
    case OptimizerKind::Momentum:
      return update_element<OptimizerKind::Momentum>(constants, element, grad, decay);
    case OptimizerKind::Nesterov:
      return update_element<OptimizerKind::Nesterov>(constants, element, grad, decay);
    case OptimizerKind::Sgd:
      return update_element<OptimizerKind::Sgd>(constants, element, grad, decay);
  }
  return element;
}

// The definition, element by element, from core/optimizer_math.h and core/state_encodings.h.
inline void define_step(const StepContext& context, const Shard& shard, std::span<const Segment> segments,
                        std::uint64_t first_element = 0) {
  const OptimizerConfig& config = shard.config();
  const UpdateConstants constants = update_constants(config.kind, context);
  const std::vector<MomentSpec> specs = moment_specs(config.kind);
  std::vector<std::vector<float>> moments;
  for (std::size_t k = 0; k < specs.size(); ++k) moments.push_back(decoded_moment(specs[k].range, shard.moment(k)));
  for (const Segment& segment : segments) {
    for (std::size_t i = segment.offset; i < segment.offset + segment.numel; ++i) {
      const bool remainder = shard.master().dtype == DType::U16;
      UpdateElement element = {};
      element.master = remainder
                           ? master_of(shard.param().as<std::uint16_t>()[i], shard.master().as<std::uint16_t>()[i])
                           : shard.master().as<float>()[i];
      if (!specs.empty()) element.moment1 = moments[0][i];
      if (specs.size() > 1) element.moment2 = moments[1][i];
      element = defined_update(config.kind, constants, element, decoded(shard.grad(), i),
                               segment.decay ? constants.decay : constants.no_decay);
      if (remainder) shard.master().as<std::uint16_t>()[i] = remainder_of(element.master);
      if (!remainder) shard.master().as<float>()[i] = element.master;
      encode(shard.param(), i, element.master);
      if (!specs.empty()) moments[0][i] = element.moment1;
      if (specs.size() > 1) moments[1][i] = element.moment2;
    }
  }
  for (std::size_t k = 0; k < specs.size(); ++k) {
    const TensorSpan stored = shard.moment(k)[0];
    if (config.moments == MomentEncoding::Block8) encode_blocks(specs[k].range, shard.moment(k), moments[k]);
    if (config.moments == MomentEncoding::Fp32) std::copy(moments[k].begin(), moments[k].end(), stored.as<float>());
    if (config.moments != MomentEncoding::Bf16) continue;
    for (std::size_t i = 0; i < stored.numel; ++i) {
      const std::uint64_t index = first_element + i;
      const RandomKey key =
          random_key(context.seed, static_cast<std::uint64_t>(context.step), static_cast<std::uint32_t>(index >> 32));
      const std::uint32_t word = random_word(key, static_cast<std::uint32_t>(index));
      stored.as<std::uint16_t>()[i] = float_to_bf16_stochastic(moments[k][i], k == 0 ? word & 0xffffu : word >> 16);
    }
  }
}

inline StepContext ordinary_step() {
  return {.step = 3, .learning_rate = 1e-3, .epsilon = 1e-8, .weight_decay = 0.1, .grad_scale = 0.37f, .seed = 11};
}

inline Segment whole(std::size_t numel) {
  return {.name = "all", .shape = {}, .offset = 0, .numel = numel, .decay = true};
}

}  // namespace strata::test
