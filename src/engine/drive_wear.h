// Drive wear: what a run writes to its drives, against what they are rated for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace strata::engine {

struct DriveWear {
  std::optional<std::uint64_t> rated_bytes;  // that the drives are rated for ("TBW"), all paths together
  std::optional<std::uint64_t> limit_bytes;  // that this run may write to its swap files

  // What a run of `steps` steps writes: `at_start` to lay out the states, then `per_step`.
  static std::uint64_t total(std::uint64_t at_start, std::uint64_t per_step, std::int64_t steps);

  // Throws: OutOfBudget when that passes limit_bytes, in words that say what would help.
  void check(std::uint64_t at_start, std::uint64_t per_step, std::int64_t steps) const;
  // Whether one more step of `per_step` bytes stays within limit_bytes.
  bool allows(std::uint64_t written, std::uint64_t per_step) const;
  // One line for the log. `step_seconds`: measured, or 0 when not yet known.
  std::string forecast(std::uint64_t at_start, std::uint64_t per_step, std::int64_t steps, double step_seconds) const;
};

}  // namespace strata::engine
