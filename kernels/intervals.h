// Which elements of a run an update touches, and which of them decay. C++17, for device and host.
#pragma once

#include <cstdint>

#include "core/numeric.h"

namespace strata::kernels {

enum class Treatment : std::uint8_t { Padding, Decay, NoDecay };

// Consecutive intervals from element 0 on, the end of each and what happens to its elements. The last end is the run's
// numel. Enough for a block of 256 elements that are treated differently in turn, so that a run can always be cut
// between blocks.
struct Intervals {
  static constexpr int kMost = 260;

  int count = 0;
  std::int64_t ends[kMost];
  Treatment treatments[kMost];

  // The interval that holds `element`; the search starts from interval `at`, which is near where elements come in
  // order.
  STRATA_HOST_DEVICE int find(std::int64_t element, int at) const {
    while (at > 0 && ends[at - 1] > element) --at;
    while (ends[at] <= element) ++at;
    return at;
  }
};

// Of a group of elements, as bits.
struct Treatments {
  unsigned updated = 0;
  unsigned decayed = 0;
};

// Of the elements from `first` on that are `members`. `at` is where the last search ended.
template <int N>
STRATA_HOST_DEVICE inline Treatments treatments_of(const Intervals& intervals, std::int64_t first, unsigned members,
                                                   int& at) {
  Treatments result;
  for (int k = 0; k < N; ++k) {
    if ((members >> k & 1u) == 0) continue;
    at = intervals.find(first + k, at);
    const Treatment treatment = intervals.treatments[at];
    // The usual case: one interval holds all of them.
    const bool all = intervals.ends[at] >= first + N;
    const unsigned elements = members & (all ? 0xffu << k : 1u << k);
    if (treatment != Treatment::Padding) result.updated |= elements;
    if (treatment == Treatment::Decay) result.decayed |= elements;
    if (all) break;
  }
  return result;
}

// Whether any element of [first, end) is updated.
STRATA_HOST_DEVICE inline bool any_updated(const Intervals& intervals, std::int64_t first, std::int64_t end, int& at) {
  at = intervals.find(first, at);
  for (int i = at;; ++i) {
    if (intervals.treatments[i] != Treatment::Padding) return true;
    if (intervals.ends[i] >= end) return false;
  }
}

}  // namespace strata::kernels
