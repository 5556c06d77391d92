#include "offload/eviction.h"

#include <algorithm>

namespace strata::offload {

std::uint64_t NextUsePolicy::rank(const PageUse& use) const {
  if (use.schedule == nullptr) return Schedule::kNever;
  const std::uint64_t next = use.schedule->next_use(use.piece, use.position);
  if (next != Schedule::kNever || use.following == nullptr) return next;
  // Not used in this mode: behind everything that is, in the order in which the following mode will want it.
  constexpr std::uint64_t kAfterThisMode = Schedule::kNever / 2;
  const std::uint64_t later = use.following->next_use(use.piece, 0);
  return later == Schedule::kNever ? later : kAfterThisMode + later;
}

}  // namespace strata::offload
