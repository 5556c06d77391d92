// The order of a step as the oracle takes it, made from the actions alone: what offload/ is told is made elsewhere.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "offload/shard_store.h"
#include "support/pipeline_bound.h"
#include "zero/visits.h"

namespace strata::test {

// How many full pages this one is.
inline double page_size(const offload::ShardStore& store, offload::PieceId piece) {
  const auto numel = static_cast<double>(store.range(piece).numel);
  return numel / static_cast<double>(store.piece_numel(store.spec(piece.shard).dtype));
}

class OracleOrder {
 public:
  OracleOrder(const offload::ShardStore& store, const std::vector<zero::UpdateShards>& updates,
              const zero::StepSeconds& seconds, zero::UpdateTime time)
      : store_(store), updates_(updates), seconds_(seconds), time_(time), updated_(updates.size(), 0) {}

  OracleStep of(const std::vector<zero::Action>& actions) {
    using Kind = zero::Action::Kind;
    std::vector<std::pair<std::size_t, std::size_t>> first_gathers;  // access, group
    std::vector<bool> gathered(updates_.size(), false);
    std::size_t next_update = 0, first_update = 0, last_run = 0;
    for (const zero::Action& action : actions) {
      if (action.kind == Kind::Run) last_run = compute(0, seconds_.visits[action.index]);
      if (action.kind == Kind::Update) {
        waits_.push_back({compute(1, 0), last_run, false});
        add_update(action.index);
      }
      if (action.kind != Kind::Unshard) continue;
      while (time_ == zero::UpdateTime::UnderForward && next_update <= action.index) {
        if (next_update == 0) first_update = compute(1, 0);
        add_update(next_update++);
      }
      if (beside() && !gathered[action.index]) {
        gathered[action.index] = true;
        first_gathers.emplace_back(compute(0, 0), action.index);
      }
      const offload::ShardId param = updates_[action.index].param;
      for (std::uint32_t p = 0; p < store_.pieces(param); ++p) add(0, {param, p}, offload::Access::Read);
    }
    if (!beside()) {
      for (std::size_t group = 0; group < updates_.size(); ++group) add_update(group);
    }
    const bool before = time_ == zero::UpdateTime::DuringBackward;
    for (const auto& [access, group] : first_gathers) waits_.push_back({access, updated_[group], before});
    if (time_ == zero::UpdateTime::UnderForward) waits_.push_back({first_update, last_run, true});
    for (const Wait& wait : waits_) {
      step_.accesses[wait.at].back = wait.at + (wait.before ? step_.accesses.size() : 0) - wait.last;
    }
    step_.pages = numbers_.size();
    return std::move(step_);
  }

 private:
  struct Wait {
    std::size_t at;
    std::size_t last;  // computation, of the repetition before where `before`
    bool before;
  };

  bool beside() const { return time_ != zero::UpdateTime::AfterBackward; }
  void add(std::size_t lane, offload::PieceId piece, offload::Access access) {
    if (!store_.paged(piece)) return;
    const std::size_t page = numbers_.emplace(std::pair(piece.shard.index, piece.piece), numbers_.size()).first->second;
    step_.accesses.push_back({page, reads(access), writes(access), 0, lane, 0, page_size(store_, piece)});
  }
  std::size_t compute(std::size_t lane, double seconds) {
    step_.accesses.push_back({OracleAccess::kNoPage, false, false, seconds, lane, 0, 0});
    return step_.accesses.size() - 1;
  }
  void add_update(std::size_t group) {
    const zero::UpdateShards& update = updates_[group];
    const std::size_t lane = beside() ? 1 : 0;
    zero::walk_update(
        store_, update,
        [&](std::size_t position, offload::PieceId piece) { add(lane, piece, update.access(position)); },
        [&](std::uint64_t, std::uint64_t numel) {
          updated_[group] = compute(lane, static_cast<double>(numel) * seconds_.update_seconds_per_element);
        });
  }

  const offload::ShardStore& store_;
  const std::vector<zero::UpdateShards>& updates_;
  const zero::StepSeconds& seconds_;
  const zero::UpdateTime time_;
  std::vector<std::size_t> updated_;  // the last computation of each group's update
  std::vector<Wait> waits_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> numbers_;  // of pages
  OracleStep step_;
};

}  // namespace strata::test
