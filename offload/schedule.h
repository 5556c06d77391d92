// Schedule: the accesses of one step, in order. A step repeats, so the future is known.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "offload/shard.h"

namespace strata::offload {

// Accesses of one thread come in their order; those of two lanes may pass each other. Updates run on a thread of their
// own: under the next forward, so that their accesses belong to the repetition that begins with that forward and the
// first repetition has none, or early, during the backward of their own step.
enum class Lane : std::uint8_t { Gathers, Updates, EarlyUpdates };
inline constexpr std::size_t kScheduleLanes = 3;

struct ScheduledAccess {
  PieceId piece;
  Access access = Access::Read;
  Lane lane = Lane::Gathers;
};

// Immutable after construction, so shared freely among threads. Positions are absolute: access i of repetition r has
// position r * size() + i, so a next use stays valid until it is passed.
class Schedule {
 public:
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

  // `kept`: the pages that stay in host memory from one repetition to the next (look_ahead.h chooses them); all others
  // stream through the slots that are left. Without a plan, the pages in memory are those that are used soonest.
  Schedule(std::string mode, std::vector<ScheduledAccess> accesses,
           const std::optional<std::vector<PieceId>>& kept = std::nullopt);

  const std::string& mode() const { return mode_; }
  std::size_t size() const { return accesses_.size(); }
  const ScheduledAccess& at(std::uint64_t position) const { return accesses_[position % accesses_.size()]; }
  // First position >= `from` at which `piece` is accessed; kNever when this schedule never does.
  std::uint64_t next_use(PieceId piece, std::uint64_t from) const;
  // Whether the access reads what another lane accessed last, in the same repetition: an updated weight that is
  // gathered, a gathered one that is updated.
  bool handed_over(std::uint64_t position) const { return handed_over_[position % accesses_.size()]; }
  // First position >= `from` at which `lane` makes an access; kNever when it makes none.
  std::uint64_t next_of_lane(Lane lane, std::uint64_t from) const;
  bool keeps(PieceId piece) const { return kept_.contains(key(piece)); }
  bool planned() const { return planned_; }
  // Over the accesses: schedules of the same have the same.
  std::uint64_t hash() const;

 private:
  static std::uint64_t key(PieceId piece) {
    return (static_cast<std::uint64_t>(piece.shard.index) << 32) | piece.piece;
  }
  using Positions = std::vector<std::uint32_t>;  // within one repetition, ascending
  std::uint64_t next_in(const Positions& positions, std::uint64_t from) const;

  std::string mode_;
  std::vector<ScheduledAccess> accesses_;
  std::unordered_map<std::uint64_t, Positions> positions_;  // of each piece
  std::array<Positions, kScheduleLanes> lanes_;
  std::vector<bool> handed_over_;  // each access
  bool planned_;
  std::unordered_set<std::uint64_t> kept_;
};

}  // namespace strata::offload
