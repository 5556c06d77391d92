#include "engine/drive_wear.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/bytes.h"
#include "core/error.h"

namespace strata::engine {
namespace {

std::string significant(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*g", digits, value);
  return text;
}

// Three digits of a count, written out: 341000.
std::string about(double count) {
  const double unit = std::pow(10, std::max(0.0, std::floor(std::log10(std::max(count, 1.0))) - 2));
  char text[64];
  std::snprintf(text, sizeof text, "%.0f", std::round(count / unit) * unit);
  return text;
}

// As drives are sold.
std::string terabytes(std::uint64_t bytes) {
  return significant(static_cast<double>(bytes) * 1e-12, 4) + " TB";
}

std::string duration(double seconds) {
  constexpr double kDay = 86400;
  if (seconds < 2 * kDay) return significant(seconds / 3600, 2) + " hours";
  if (seconds < 730 * kDay) return significant(seconds / kDay, 3) + " days";
  return significant(seconds / kDay / 365, 3) + " years";
}

}  // namespace

std::uint64_t DriveWear::total(std::uint64_t at_start, std::uint64_t per_step, std::int64_t steps) {
  const double sum = static_cast<double>(at_start) + static_cast<double>(per_step) * static_cast<double>(steps);
  constexpr double kMost = 9e18;  // a run that would write more than any drive can hold count of
  return sum < kMost ? at_start + per_step * static_cast<std::uint64_t>(steps)
                     : std::uint64_t{9'000'000'000'000'000'000};
}

void DriveWear::check(std::uint64_t at_start, std::uint64_t per_step, std::int64_t steps) const {
  const std::uint64_t sum = total(at_start, per_step, steps);
  if (!limit_bytes || sum <= *limit_bytes) return;
  throw OutOfBudget("this run would write " + format_bytes(sum) + " to its drives (" + format_bytes(at_start) +
                        " to lay out the states, " + format_bytes(per_step) + " a step, " + std::to_string(steps) +
                        " steps), but strata.nvme.wear_limit is " + format_bytes(*limit_bytes) +
                        "; raise strata.budgets.host, so that more states stay in memory, train fewer steps with more "
                        "gradient_accumulation_steps, or raise the limit",
                    sum, *limit_bytes);
}

bool DriveWear::allows(std::uint64_t written, std::uint64_t per_step) const {
  return !limit_bytes || (written <= *limit_bytes && per_step <= *limit_bytes - written);
}

std::string DriveWear::forecast(std::uint64_t at_start, std::uint64_t per_step, std::int64_t steps,
                                double step_seconds) const {
  const std::uint64_t sum = total(at_start, per_step, steps);
  std::string text = "drives: " + format_bytes(per_step) + " written a step, " + format_bytes(sum) + " in " +
                     std::to_string(steps) + " steps";
  if (!rated_bytes) return text + "; with strata.nvme.rated_writes (the drive's TBW) the share of its life is shown";
  text += ", " + significant(100 * static_cast<double>(sum) / static_cast<double>(*rated_bytes), 2) +
          " % of the rated " + terabytes(*rated_bytes);
  if (per_step == 0) return text;
  const double steps_of_life = static_cast<double>(*rated_bytes) / static_cast<double>(per_step);
  text += "; a new drive would last about " + about(steps_of_life) + " such steps";
  if (step_seconds > 0) text += ", " + duration(steps_of_life * step_seconds) + " of training without a pause";
  return text;
}

}  // namespace strata::engine
