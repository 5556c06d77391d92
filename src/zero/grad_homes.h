// Where gradients arrive, and which of them can use one home in turn.
#pragma once

#include <cstdint>
#include <vector>

#include "zero/visits.h"

namespace strata::zero {

// A gradient reaches its home: Write when that begins the step's sum, ReadWrite when it is added to it.
struct GradArrival {
  std::size_t group = 0;
  offload::Access access = offload::Access::Write;
  bool operator==(const GradArrival&) const = default;
};

// Per visit, what arrives after it, in order. Contributions that are summed on the device (leading_contributions())
// arrive with the last of them.
std::vector<std::vector<GradArrival>> grad_arrivals(const std::vector<Visit>& visits, std::size_t groups);

// With UpdateTime::DuringBackward a gradient is done with as soon as its group is updated. So groups whose gradient
// arrives once, and which nothing needs after that, use two homes in turn: one fills while the other is read. Per
// group, the group whose home it uses, the largest of those that take turns; itself for all others (tied embeddings).
// `bytes`: of each group's home.
std::vector<std::size_t> grad_homes_in_turn(const std::vector<Visit>& visits, const std::vector<std::uint64_t>& bytes);

}  // namespace strata::zero
