// The loss scale of fp16 training: a factor that lifts gradients over fp16's smallest numbers on their way through
// backward, found while training from the steps that overflow (Micikevicius et al., "Mixed Precision Training", 2018,
// section 3.2). Pure functions: the state belongs to RunState and so to checkpoints.
#pragma once

#include <cstdint>
#include <optional>

namespace strata::engine {

struct LossScaleConfig {
  double constant = 0;         // above 0: always this one, and nothing below is used
  double initial = 65536;      // of a run's first step
  double minimum = 1;          // a run that would need less ends
  std::int64_t window = 2000;  // steps in a row without an overflow before the scale doubles
};

struct LossScaleState {
  double scale = 0;             // of the next step; 0: the loss is not scaled
  std::int64_t good_steps = 0;  // in a row, since the scale last changed
  bool operator==(const LossScaleState&) const = default;
};

// No scale grows beyond this one, so that it and its reciprocal are ordinary fp32 numbers for any number of tokens.
inline constexpr double kLargestLossScale = 0x1p64;

// How a run goes on from the state in its checkpoint ({}: it starts). A constant scale, and the bounds
// of a dynamic one, win. Throws: ConfigError for settings that contradict each other.
LossScaleState resumed_loss_scale(const std::optional<LossScaleConfig>& config, const LossScaleState& stored);

// After a step whose gradients were finite.
LossScaleState after_good_step(const LossScaleConfig& config, LossScaleState state);
// After a step that was skipped because one was not. Throws: DataError, with advice, when half the scale is below the
// minimum.
LossScaleState after_overflow(const LossScaleConfig& config, LossScaleState state);

// What the sum of token losses is multiplied with in backward. The scale is meant for the mean loss, as in torch and
// DeepSpeed, so it is divided by the number of target tokens of the step; by the power of two at or below it, which is
// exact. Requires: tokens >= 0; with none there is no gradient to scale.
double gradient_seed(const LossScaleState& state, double tokens);

}  // namespace strata::engine
