#include "engine/loss_scale.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "core/error.h"

namespace strata::engine {
namespace {

void check(const LossScaleConfig& config) {
  const auto usable = [](double scale) { return scale > 0 && scale <= kLargestLossScale; };
  if (config.constant != 0 && !usable(config.constant)) {
    throw ConfigError("loss_scale must be 0 (dynamic), or greater than 0 and at most 2^64");
  }
  if (!usable(config.initial) || !usable(config.minimum)) {
    throw ConfigError("initial_loss_scale and min_loss_scale must be greater than 0 and at most 2^64");
  }
  if (config.initial < config.minimum) throw ConfigError("initial_loss_scale is below min_loss_scale");
  if (config.window < 1) throw ConfigError("loss_scale_window must be 1 or more");
}

}  // namespace

LossScaleState resumed_loss_scale(const std::optional<LossScaleConfig>& config, const LossScaleState& stored) {
  if (!config) return {};
  check(*config);
  if (config->constant > 0) return {config->constant, 0};
  if (!(stored.scale > 0)) return {config->initial, 0};
  const double bounded = std::clamp(stored.scale, config->minimum, kLargestLossScale);
  return bounded == stored.scale ? stored : LossScaleState{bounded, 0};
}

LossScaleState after_good_step(const LossScaleConfig& config, LossScaleState state) {
  if (config.constant > 0) return state;
  if (++state.good_steps < config.window) return state;
  return {std::min(2 * state.scale, kLargestLossScale), 0};
}

LossScaleState after_overflow(const LossScaleConfig& config, LossScaleState state) {
  if (config.constant > 0) return state;
  const double half = state.scale / 2;
  if (half < config.minimum) {
    std::ostringstream text;
    text << "fp16 gradients are not finite at a loss scale of " << state.scale
         << ", and half of it is below the minimum of " << config.minimum
         << " (min_loss_scale): the model leaves the range of fp16, which ends at 65504. Train with "
         << "bf16: true, or lower learning_rate or max_grad_norm and continue from the last checkpoint. The step was "
         << "skipped and changed nothing";
    throw DataError(text.str());
  }
  return {half, 0};
}

double gradient_seed(const LossScaleState& state, double tokens) {
  if (!(state.scale > 0)) return 1;
  // Rounded to fp32, in which it multiplies: what divides the gradients again must be the same number.
  return static_cast<float>(std::ldexp(state.scale, tokens >= 1 ? -std::ilogb(tokens) : 0));
}

}  // namespace strata::engine
