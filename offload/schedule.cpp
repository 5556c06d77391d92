#include "offload/schedule.h"

#include <algorithm>

#include "core/error.h"
#include "core/fnv.h"

namespace strata::offload {

Schedule::Schedule(std::string mode, std::vector<ScheduledAccess> accesses,
                   const std::optional<std::vector<PieceId>>& kept)
    : mode_(std::move(mode)), accesses_(std::move(accesses)), planned_(kept.has_value()) {
  STRATA_EXPECTS(accesses_.size() < std::numeric_limits<std::uint32_t>::max(), "schedule too long");
  for (std::size_t i = 0; i < accesses_.size(); ++i) {
    Positions& uses = positions_[key(accesses_[i].piece)];
    handed_over_.push_back(!uses.empty() && reads(accesses_[i].access) &&
                           accesses_[uses.back()].lane != accesses_[i].lane);
    uses.push_back(static_cast<std::uint32_t>(i));
    lanes_[static_cast<std::size_t>(accesses_[i].lane)].push_back(static_cast<std::uint32_t>(i));
  }
  if (kept) {
    for (const PieceId piece : *kept) kept_.insert(key(piece));
  }
}

std::uint64_t Schedule::next_use(PieceId piece, std::uint64_t from) const {
  const auto found = positions_.find(key(piece));
  return found == positions_.end() ? kNever : next_in(found->second, from);
}

std::uint64_t Schedule::next_of_lane(Lane lane, std::uint64_t from) const {
  return next_in(lanes_[static_cast<std::size_t>(lane)], from);
}

std::uint64_t Schedule::next_in(const Positions& positions, std::uint64_t from) const {
  if (positions.empty()) return kNever;
  const std::uint64_t repetition = from / accesses_.size();
  const auto within = static_cast<std::uint32_t>(from % accesses_.size());
  const auto next = std::lower_bound(positions.begin(), positions.end(), within);
  if (next != positions.end()) return repetition * accesses_.size() + *next;
  return (repetition + 1) * accesses_.size() + positions.front();
}

std::uint64_t Schedule::hash() const {
  Fnv1a hash;
  for (const ScheduledAccess& access : accesses_) {
    hash.add(key(access.piece));
    hash.add(static_cast<std::uint64_t>(access.access));
  }
  return hash.value();
}

}  // namespace strata::offload
