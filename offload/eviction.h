// Which cached page leaves first.
#pragma once

#include <cstdint>
#include <string_view>

#include "offload/schedule.h"

namespace strata::offload {

// What a policy may look at when a page becomes evictable.
struct PageUse {
  PieceId piece;
  const Schedule* schedule = nullptr;  // of the running mode; may be null
  std::uint64_t position = 0;          // next access in `schedule`
  const Schedule* following =
      nullptr;             // the mode that resumes afterwards (training, while an evaluation runs); may be null
  std::uint64_t tick = 0;  // accesses so far, all modes
};

// Port. Stateless; the page with the largest rank is evicted first.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual std::string_view name() const = 0;
  virtual std::uint64_t rank(const PageUse& use) const = 0;
};

// The page whose next use lies farthest ahead leaves (Belady, "A study of replacement algorithms for a virtual-storage
// computer", 1966): possible because a training step repeats. States updated in a cycle keep a fixed share in memory,
// so a cached share c saves exactly that share of the traffic. Pages that a schedule keeps leave after all others.
class NextUsePolicy final : public EvictionPolicy {
 public:
  std::string_view name() const override { return "next_use"; }
  std::uint64_t rank(const PageUse& use) const override;
};

// The page used longest ago leaves: for comparison, and for access patterns without a schedule.
class LruPolicy final : public EvictionPolicy {
 public:
  std::string_view name() const override { return "lru"; }
  std::uint64_t rank(const PageUse& use) const override { return Schedule::kNever - use.tick; }
};

}  // namespace strata::offload
