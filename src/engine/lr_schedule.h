// Learning-rate schedules: pure functions of the step, as in get_scheduler() of Hugging Face transformers
// (src/transformers/optimization.py).
#pragma once

#include <cstdint>

namespace strata::engine {

enum class LrKind : std::uint8_t { Linear, Cosine, Constant, ConstantWithWarmup };

struct LrSchedule {
  LrKind kind = LrKind::Linear;
  double base = 0;                // the rate that warm-up climbs to
  std::int64_t total_steps = 0;   // updates of the whole run
  std::int64_t warmup_steps = 0;  // updates that climb from 0; may exceed total_steps: then `base` is never reached

  // The rate after `done` updates, in [0, base]. Finite for every combination, zeros included; past the end it stays at
  // the last value. Requires: done >= 0.
  double at(std::int64_t done) const;
  // The rate that update number `update` (1-based) uses, which is also what is logged for it: at(update - 1), so with
  // warm-up the first update has rate 0. Requires: update >= 1.
  double for_update(std::int64_t update) const { return at(update - 1); }
};

// `warmup_steps` where it is > 0, else `warmup_ratio` of the total, rounded up (TrainingArguments.get_warmup_steps).
std::int64_t resolve_warmup_steps(std::int64_t warmup_steps, double warmup_ratio, std::int64_t total_steps);

}  // namespace strata::engine
