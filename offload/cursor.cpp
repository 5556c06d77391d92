#include "offload/cursor.h"

#include <algorithm>

namespace strata::offload {

void Cursor::start(const Schedule* schedule) {
  schedule_ = schedule != nullptr && schedule->size() > 0 ? schedule : nullptr;
  position_ = 0;
  next_ = {};
  if (schedule_ == nullptr) return;
  for (const Lane lane : {Lane::Gathers, Lane::Updates, Lane::EarlyUpdates}) {
    next_[lane_index(lane)] = schedule_->next_of_lane(lane, lane == Lane::Updates ? schedule_->size() : 0);
  }
  position_ = *std::min_element(next_.begin(), next_.end());
}

std::uint64_t Cursor::next_use(PieceId piece) const {
  if (schedule_ == nullptr) return Schedule::kNever;
  std::uint64_t at = schedule_->next_use(piece, position_);
  while (at != Schedule::kNever && made(at)) at = schedule_->next_use(piece, at + 1);
  return at;
}

Cursor::Followed Cursor::follow(PieceId piece, Lane lane, const std::function<void(std::uint64_t)>& on_made) {
  std::uint64_t& next = next_[lane_index(lane)];
  std::uint64_t found = next;
  // The lane's own next access to the piece; nearly always its very next access.
  while (found != Schedule::kNever && !(schedule_->at(found).piece == piece)) {
    found = schedule_->next_of_lane(lane, found + 1);
    if (found != Schedule::kNever && found - next > kResyncDistance) return Followed::Stray;
  }
  if (found == Schedule::kNever) return Followed::Stray;
  const Followed followed = found == next ? Followed::Next : Followed::Skipped;
  while (next <= found) {
    on_made(next);
    next = schedule_->next_of_lane(lane, next + 1);
  }
  position_ = *std::min_element(next_.begin(), next_.end());
  return followed;
}

}  // namespace strata::offload
