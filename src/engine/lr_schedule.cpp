#include "engine/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace strata::engine {

double LrSchedule::at(std::int64_t done) const {
  STRATA_EXPECTS(done >= 0, "a schedule starts at 0 finished updates");
  if (kind == LrKind::Constant) return base;
  // Climbs even where the warm-up is longer than the run: the rate of a step must not depend on how long the run is.
  if (done < warmup_steps) {
    return base * (static_cast<double>(done) / static_cast<double>(std::max<std::int64_t>(1, warmup_steps)));
  }
  if (kind == LrKind::ConstantWithWarmup) return base;

  const auto decay_steps = static_cast<double>(std::max<std::int64_t>(1, total_steps - warmup_steps));
  if (kind == LrKind::Linear) {
    return base * std::max(0.0, static_cast<double>(total_steps - done) / decay_steps);
  }
  // transformers lets the cosine rise again past the end of the run; no run gets there, and 0 surprises nobody.
  const double progress = std::min(1.0, static_cast<double>(done - warmup_steps) / decay_steps);
  return base * std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
}

std::int64_t resolve_warmup_steps(std::int64_t warmup_steps, double warmup_ratio, std::int64_t total_steps) {
  if (warmup_steps > 0) return warmup_steps;
  return static_cast<std::int64_t>(std::ceil(warmup_ratio * static_cast<double>(total_steps)));
}

}  // namespace strata::engine
