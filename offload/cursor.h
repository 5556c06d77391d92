// Cursor: where a repeated schedule stands, while its lanes run ahead of one another.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "offload/schedule.h"

namespace strata::offload {

// Of one thread. The schedule must outlive its use here; null: there is none.
class Cursor {
 public:
  // To the beginning: each lane at its first access, Lane::Updates at that of the second repetition.
  void start(const Schedule* schedule);

  // The first access that was not made yet; schedule positions before it are past. Requires: there is a schedule.
  std::uint64_t position() const { return position_; }
  // Whether a lane that is ahead of others has made this access. Requires: at >= position().
  bool made(std::uint64_t at) const { return at < next_[lane_index(schedule_->at(at).lane)]; }
  // First access to `piece` that was not made yet; kNever when there is none, or no schedule.
  std::uint64_t next_use(PieceId piece) const;

  // Follows an access by `lane`: calls `on_made` for each access that thereby becomes past, or is skipped, in order.
  // Returns false when it is a stray: not the lane's next one, nor close behind it.
  enum class Followed : std::uint8_t { Next, Skipped, Stray };
  Followed follow(PieceId piece, Lane lane, const std::function<void(std::uint64_t)>& on_made);

 private:
  // An access that comes this much later in the schedule still moves the cursor; one farther away is a stray.
  static constexpr std::uint64_t kResyncDistance = 64;
  static std::size_t lane_index(Lane lane) { return static_cast<std::size_t>(lane); }

  const Schedule* schedule_ = nullptr;
  std::array<std::uint64_t, kScheduleLanes> next_{};  // the next access of each lane
  std::uint64_t position_ = 0;                        // the smallest of them
};

}  // namespace strata::offload
