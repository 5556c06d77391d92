#include "offload/eviction.h"

#include <algorithm>

namespace strata::offload {

// Ranks of pages that are not kept, above those that are; and of pages that this mode does not use, above both.
constexpr std::uint64_t kStreamed = Schedule::kNever / 4;
constexpr std::uint64_t kAfterThisMode = Schedule::kNever / 2;
constexpr std::uint64_t kOverwritten = Schedule::kNever / 4 * 3;

std::uint64_t NextUsePolicy::rank(const PageUse& use) const {
  if (use.schedule == nullptr) return Schedule::kNever;
  const std::uint64_t next = use.schedule->next_use(use.piece, use.position);
  const bool kept = use.schedule->keeps(use.piece) || (use.following != nullptr && use.following->keeps(use.piece));
  if (next != Schedule::kNever) {
    if (kept) return next;
    // What the next access overwrites is worth nothing until then.
    return reads(use.schedule->at(next).access) ? kStreamed + next : kOverwritten;
  }
  if (use.following == nullptr) return next;
  // Not used in this mode: behind everything that is, in the order in which the following mode will want it. What that
  // mode keeps stays.
  const std::uint64_t later = use.following->next_use(use.piece, 0);
  if (later == Schedule::kNever) return later;
  return kept ? later : kAfterThisMode + later;
}

}  // namespace strata::offload
