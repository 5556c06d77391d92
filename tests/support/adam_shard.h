// A shard for tests of AdamW, and the definition of a step on it.
#pragma once

#include <cmath>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/adam_math.h"
#include "core/shard_optimizer.h"
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

// A shard with gradient and states, random but plausible, `shift` elements away from alignment, guards around every
// array.
class Shard {
 public:
  Shard(DType param, DType grad, std::size_t numel, std::size_t shift = 0, unsigned seed = 1) {
    for (const DType dtype : {param, grad, DType::F32, DType::F32, DType::F32})
      arrays_.emplace_back(dtype, numel, shift);
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < numel; ++i) {
      const float master = 0.05f * normal(random);
      encode(arrays_[0].span(), i, master);
      encode(arrays_[1].span(), i, normal(random));
      arrays_[2].span().as<float>()[i] = master;
      arrays_[3].span().as<float>()[i] = 0.1f * normal(random);
      arrays_[4].span().as<float>()[i] = std::abs(0.01f * normal(random));
    }
    for (std::size_t i = param == DType::F32 ? 3 : 2; i < 5; ++i) states_.push_back(arrays_[i].span());
  }

  TensorSpan param() const { return arrays_[0].span(); }
  TensorSpan grad() const { return arrays_[1].span(); }
  TensorSpan master() const { return param().dtype == DType::F32 ? param() : arrays_[2].span(); }
  TensorSpan exp_avg() const { return arrays_[3].span(); }
  TensorSpan exp_avg_sq() const { return arrays_[4].span(); }

  ShardViews views(std::span<const Segment> segments) const { return {param(), grad(), states_, segments}; }
  bool guards_intact() const {
    for (const GuardedArray& array : arrays_) {
      if (!array.guards_intact()) return false;
    }
    return true;
  }
  bool same_bytes(const Shard& other) const {
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      if (!arrays_[i].same_elements(other.arrays_[i])) return false;
    }
    return true;
  }

 private:
  std::vector<GuardedArray> arrays_;
  std::vector<TensorSpan> states_;
};

// The definition, element by element, from core/adam_math.h.
inline void define_step(const StepContext& context, const Shard& shard, std::span<const Segment> segments) {
  const AdamConstants constants = adam_constants(context);
  for (const Segment& segment : segments) {
    for (std::size_t i = segment.offset; i < segment.offset + segment.numel; ++i) {
      auto& master = shard.master().as<float>()[i];
      auto& exp_avg = shard.exp_avg().as<float>()[i];
      auto& exp_avg_sq = shard.exp_avg_sq().as<float>()[i];
      const AdamElement updated = adam_update(constants, {master, exp_avg, exp_avg_sq}, decoded(shard.grad(), i),
                                              segment.decay ? constants.decay_factor : 1.0f);
      master = updated.master;
      exp_avg = updated.exp_avg;
      exp_avg_sq = updated.exp_avg_sq;
      encode(shard.param(), i, updated.master);
    }
  }
}

inline StepContext ordinary_step() {
  return {.step = 3, .learning_rate = 1e-3, .epsilon = 1e-8, .weight_decay = 0.1, .grad_scale = 0.37f};
}

inline Segment whole(std::size_t numel) {
  return {.name = "all", .shape = {}, .offset = 0, .numel = numel, .decay = true};
}

}  // namespace strata::test
