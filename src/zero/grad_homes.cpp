#include "zero/grad_homes.h"

#include <algorithm>
#include <array>

namespace strata::zero {

std::vector<std::vector<GradArrival>> grad_arrivals(const std::vector<Visit>& visits, std::size_t groups) {
  const std::vector<std::size_t> summed_first = leading_contributions(visits, groups);
  std::vector<std::size_t> received(groups, 0);
  std::vector<std::vector<GradArrival>> arrivals(visits.size());
  for (std::size_t v = 0; v < visits.size(); ++v) {
    for (const std::size_t group : visits[v].grad_groups) {
      const std::size_t count = ++received[group];
      if (count < summed_first[group]) continue;
      arrivals[v].push_back(
          {group, count == summed_first[group] ? offload::Access::Write : offload::Access::ReadWrite});
    }
  }
  return arrivals;
}

std::vector<std::size_t> grad_homes_in_turn(const std::vector<Visit>& visits, const std::vector<std::uint64_t>& bytes) {
  const std::size_t groups = bytes.size();
  const std::vector<std::vector<GradArrival>> arrivals = grad_arrivals(visits, groups);
  std::vector<std::size_t> times(groups, 0);
  std::vector<std::size_t> last(groups, 0);  // visit that needs the group or contributes to it: its update follows
  for (std::size_t v = 0; v < visits.size(); ++v) {
    for (const GradArrival& arrival : arrivals[v]) ++times[arrival.group];
    for (const std::size_t group : visits[v].groups) last[group] = v;
    for (const std::size_t group : visits[v].grad_groups) last[group] = v;
  }
  struct Turn {
    std::vector<std::size_t> users;
    std::size_t last_visit = 0;
  };
  std::array<Turn, 2> turns;
  std::size_t next = 0;
  for (std::size_t v = 0; v < visits.size(); ++v) {
    for (const GradArrival& arrival : arrivals[v]) {
      Turn& turn = turns[next % turns.size()];
      // The update of the one before must have been started by then.
      const bool free = turn.users.empty() || turn.last_visit < v;
      if (times[arrival.group] != 1 || last[arrival.group] != v || !free) continue;
      turn.users.push_back(arrival.group);
      turn.last_visit = v;
      ++next;
    }
  }
  std::vector<std::size_t> homes(groups);
  for (std::size_t g = 0; g < groups; ++g) homes[g] = g;
  for (const Turn& turn : turns) {
    const auto larger = [&](std::size_t a, std::size_t b) { return bytes[a] < bytes[b]; };
    for (const std::size_t group : turn.users) homes[group] = *std::ranges::max_element(turn.users, larger);
  }
  return homes;
}

}  // namespace strata::zero
