#include "offload/look_ahead.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/error.h"

namespace strata::offload {
namespace {

struct Phase {
  std::array<double, 2> seconds{};  // of computing: by the gathers' lane, by those of updates
  std::int64_t read = 0;            // bytes
  std::int64_t written = 0;
};
// The update and what runs beside it; all else.
using Phases = std::array<Phase, 2>;

// What keeping one page saves: bytes read and written by each phase.
using Traffic = std::array<std::int64_t, 4>;

// Pages with the same traffic, in the order in which they are kept.
struct Kind {
  Traffic traffic{};
  bool gathered = false;  // weights
  std::vector<PieceId> pages;
  std::size_t kept = 0;
};

struct Kinds {
  std::vector<Kind> kinds;
  std::size_t most_held = 0;  // pages of the gathers' lane at once beside an update: gathered, or handed over
};

Phases without(Phases phases, const Traffic& traffic) {
  for (std::size_t p = 0; p < phases.size(); ++p) {
    phases[p].read -= traffic[2 * p];
    phases[p].written -= traffic[2 * p + 1];
  }
  return phases;
}

double seconds_of(const Phases& phases, const DriveRates& drive) {
  double sum = 0;
  for (const Phase& phase : phases) {
    const double reading = static_cast<double>(phase.read) / drive.read_bytes_per_second;
    const double writing = static_cast<double>(phase.written) / drive.write_bytes_per_second;
    sum += std::max({phase.seconds[0], phase.seconds[1],
                     drive.duplex == Duplex::Half ? reading + writing : std::max(reading, writing)});
  }
  return sum;
}

// The order of the van der Corput sequence (the index with its bits reversed): every prefix is spread evenly.
void spread(std::vector<PieceId>& pages) {
  const auto reversed = [](std::uint32_t index) {
    std::uint32_t result = 0;
    for (int bit = 0; bit < 32; ++bit, index >>= 1) result = (result << 1) | (index & 1);
    return result;
  };
  std::vector<std::uint32_t> order(pages.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return reversed(a) < reversed(b); });
  std::vector<PieceId> result;
  for (const std::uint32_t i : order) result.push_back(pages[i]);
  pages = std::move(result);
}

// The first access that writes and the one after the last.
std::pair<std::size_t, std::size_t> update_phase(std::span<const TimedAccess> step) {
  std::size_t first = step.size(), end = 0;
  for (std::size_t i = 0; i < step.size(); ++i) {
    if (!writes(step[i].access)) continue;
    first = std::min(first, i);
    end = i + 1;
  }
  return {first, end};
}

Kinds kinds_of(std::span<const TimedAccess> step, std::size_t slot_bytes, Phases& phases) {
  struct Page {
    PieceId piece;
    Traffic traffic{};
    bool gathered = false;
    std::size_t last = 0;  // access
  };
  std::unordered_map<std::uint64_t, std::size_t> numbers;
  std::vector<Page> pages;                // in the order of their first access
  std::vector<int> held(step.size(), 0);  // how many more pages wait for another lane, after each access
  const auto [first, end] = update_phase(step);
  for (std::size_t i = 0; i < step.size(); ++i) {
    const TimedAccess& a = step[i];
    const std::size_t number = first <= i && i < end ? 0 : 1;
    const std::size_t lane = a.lane == Lane::Gathers ? 0 : 1;
    phases[number].seconds[lane] += a.seconds;
    phases[number].seconds[1 - lane] += a.beside_seconds;
    const std::uint64_t key = (static_cast<std::uint64_t>(a.piece.shard.index) << 32) | a.piece.piece;
    const auto [found, fresh] = numbers.emplace(key, pages.size());
    if (fresh) pages.push_back({a.piece});
    Page& page = pages[found->second];
    const bool handed_over = !fresh && reads(a.access) && step[page.last].lane != a.lane;
    if (handed_over) {
      ++held[page.last];
      --held[i];
    }
    page.gathered = page.gathered || lane == 0;
    page.last = i;
    const auto bytes = static_cast<std::int64_t>(a.bytes > 0 ? a.bytes : slot_bytes);
    if (reads(a.access) && !handed_over) page.traffic[2 * number] += bytes;
    if (writes(a.access)) page.traffic[2 * number + 1] += bytes;
  }
  std::map<std::pair<Traffic, bool>, Kind> kinds;
  for (const Page& page : pages) {
    Kind& kind = kinds[{page.traffic, page.gathered}];
    kind.traffic = page.traffic;
    kind.gathered = page.gathered;
    kind.pages.push_back(page.piece);
    for (std::size_t p = 0; p < phases.size(); ++p) {
      phases[p].read += page.traffic[2 * p];
      phases[p].written += page.traffic[2 * p + 1];
    }
  }
  Kinds result;
  for (auto& [key, kind] : kinds) {
    spread(kind.pages);
    result.kinds.push_back(std::move(kind));
  }
  const auto beside = [](const TimedAccess& a) { return a.lane != Lane::Gathers; };
  if (std::none_of(step.begin(), step.end(), beside)) return result;
  int waiting = 0;
  std::optional<std::size_t> gathered;  // since the last update
  for (std::size_t i = 0; i < step.size(); ++i) {
    waiting += held[i];
    const bool update = beside(step[i]);
    result.most_held =
        std::max({result.most_held, static_cast<std::size_t>(waiting), update ? gathered.value_or(0) : 0});
    if (update) gathered = 0;
    if (!update && gathered) ++*gathered;
  }
  return result;
}

// Slots for pages of the gathers' lane beside an update: fewer, the more of those pages are kept.
std::size_t held_slots(const Kinds& kinds) {
  std::size_t all = 0, kept = 0;
  for (const Kind& kind : kinds.kinds) {
    if (!kind.gathered) continue;
    all += kind.pages.size();
    kept += kind.kept;
  }
  return all == 0 ? 0 : (kinds.most_held * (all - kept) + all - 1) / all;
}

// The kind of which the next page is kept; null when all are.
Kind* next_kind(Kinds& kinds, const Phases& phases, const DriveRates& drive) {
  Kind* best = nullptr;
  double best_seconds = 0;
  std::int64_t best_bytes = 0;
  for (Kind& kind : kinds.kinds) {
    if (kind.kept == kind.pages.size()) continue;
    const double seconds = seconds_of(without(phases, kind.traffic), drive);
    const std::int64_t bytes = std::accumulate(kind.traffic.begin(), kind.traffic.end(), std::int64_t{0});
    constexpr double kEqual = 1e-12;
    const bool faster = best == nullptr || seconds < best_seconds * (1 - kEqual);
    const bool as_fast = seconds <= best_seconds * (1 + kEqual);
    if (!faster && !(as_fast && bytes > best_bytes)) continue;
    best = &kind;
    best_seconds = seconds;
    best_bytes = bytes;
  }
  return best;
}

}  // namespace

std::size_t passing_slots(const DriveRates& drive, const PoolSize& pool) {
  const auto within_latency = [&](double bytes_per_second) {
    return static_cast<std::size_t>(
        std::ceil(drive.latency_seconds * bytes_per_second / static_cast<double>(pool.slot_bytes)));
  };
  const std::size_t reading = std::max(pool.pinned, 1 + within_latency(drive.read_bytes_per_second));
  // While a half-duplex drive reads it does not write.
  const std::size_t writing = (drive.duplex == Duplex::Full ? 1 : 0) + within_latency(drive.write_bytes_per_second);
  return pool.pinned + reading + writing;
}

LookAhead plan_look_ahead(std::span<const TimedAccess> step, const DriveRates& drive, const PoolSize& pool) {
  STRATA_EXPECTS(drive.read_bytes_per_second > 0 && drive.write_bytes_per_second > 0, "a drive has rates");
  STRATA_EXPECTS(pool.pinned > 0 && pool.slots >= pool.pinned && pool.slot_bytes > 0,
                 "the pool is smaller than what callers pin");
  Phases phases;
  Kinds kinds = kinds_of(step, pool.slot_bytes, phases);
  std::size_t pages = 0;
  for (const Kind& kind : kinds.kinds) pages += kind.pages.size();
  const std::size_t passing = std::min(passing_slots(drive, pool), pool.slots);
  LookAhead plan;
  // A step that fits needs no slot to pass through.
  while (pages <= pool.slots || plan.kept.size() + passing + held_slots(kinds) < pool.slots) {
    Kind* const kind = next_kind(kinds, phases, drive);
    if (kind == nullptr) break;
    plan.kept.push_back(kind->pages[kind->kept++]);
    phases = without(phases, kind->traffic);
  }
  // One slot less, for a page that is only written: it is not read ahead, yet needs a slot at once.
  plan.look_ahead_bytes = std::max<std::size_t>(passing - 1, 1) * static_cast<std::uint64_t>(pool.slot_bytes);
  return plan;
}

}  // namespace strata::offload
