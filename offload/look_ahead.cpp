#include "offload/look_ahead.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <unordered_map>

#include "core/error.h"

namespace strata::offload {
namespace {

struct Phase {
  double seconds = 0;  // of computing
  std::int64_t reads = 0;
  std::int64_t writes = 0;
};
// The gathers; the update.
using Phases = std::array<Phase, 2>;

// What keeping one page saves, in transfers per phase: reads and writes of the gathers, reads and writes of the update.
using Traffic = std::array<std::int64_t, 4>;

// Pages with the same traffic, in the order in which they are kept.
struct Kind {
  Traffic traffic;
  std::vector<PieceId> pages;
  std::size_t kept = 0;
};

void count(Traffic& traffic, std::size_t phase, Access access) {
  traffic[2 * phase] += reads(access) ? 1 : 0;
  traffic[2 * phase + 1] += writes(access) ? 1 : 0;
}

Phases without(Phases phases, const Traffic& traffic) {
  for (std::size_t p = 0; p < phases.size(); ++p) {
    phases[p].reads -= traffic[2 * p];
    phases[p].writes -= traffic[2 * p + 1];
  }
  return phases;
}

double seconds_of(const Phases& phases, const DriveRates& drive, double page_bytes) {
  double sum = 0;
  for (const Phase& phase : phases) {
    const double reading = static_cast<double>(phase.reads) * page_bytes / drive.read_bytes_per_second;
    const double writing = static_cast<double>(phase.writes) * page_bytes / drive.write_bytes_per_second;
    sum += std::max(phase.seconds, drive.duplex == Duplex::Half ? reading + writing : std::max(reading, writing));
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

std::vector<Kind> kinds_of(std::span<const TimedAccess> step, Phases& phases) {
  std::unordered_map<std::uint64_t, std::size_t> numbers;
  std::vector<std::pair<PieceId, Traffic>> pages;  // in the order of their first access
  std::size_t phase = 0;
  for (const TimedAccess& a : step) {
    if (writes(a.access)) phase = 1;
    phases[phase].seconds += a.seconds;
    phases[phase].reads += reads(a.access) ? 1 : 0;
    phases[phase].writes += writes(a.access) ? 1 : 0;
    const std::uint64_t key = (static_cast<std::uint64_t>(a.piece.shard.index) << 32) | a.piece.piece;
    const auto [found, fresh] = numbers.emplace(key, pages.size());
    if (fresh) pages.push_back({a.piece, {}});
    count(pages[found->second].second, phase, a.access);
  }
  std::map<Traffic, Kind> kinds;
  for (const auto& [piece, traffic] : pages) {
    Kind& kind = kinds[traffic];
    kind.traffic = traffic;
    kind.pages.push_back(piece);
  }
  std::vector<Kind> result;
  for (auto& [traffic, kind] : kinds) {
    spread(kind.pages);
    result.push_back(std::move(kind));
  }
  return result;
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
  std::vector<Kind> kinds = kinds_of(step, phases);
  std::size_t pages = 0;
  for (const Kind& kind : kinds) pages += kind.pages.size();
  const std::size_t passing = std::min(passing_slots(drive, pool), pool.slots);
  // A step that fits needs no slot to pass through.
  const std::size_t keep = pages <= pool.slots ? pages : pool.slots - passing;
  LookAhead plan;
  while (plan.kept.size() < keep) {
    Kind* best = nullptr;
    double best_seconds = 0;
    std::int64_t best_transfers = 0;
    for (Kind& kind : kinds) {
      if (kind.kept == kind.pages.size()) continue;
      const double seconds = seconds_of(without(phases, kind.traffic), drive, static_cast<double>(pool.slot_bytes));
      std::int64_t transfers = 0;
      for (const std::int64_t n : kind.traffic) transfers += n;
      constexpr double kEqual = 1e-12;
      const bool faster = best == nullptr || seconds < best_seconds * (1 - kEqual);
      const bool as_fast = seconds <= best_seconds * (1 + kEqual);
      if (!faster && !(as_fast && transfers > best_transfers)) continue;
      best = &kind;
      best_seconds = seconds;
      best_transfers = transfers;
    }
    plan.kept.push_back(best->pages[best->kept++]);
    phases = without(phases, best->traffic);
  }
  // One slot less, for a page that is only written: it is not read ahead, yet needs a slot at once.
  plan.look_ahead_bytes = std::max<std::size_t>(passing - 1, 1) * static_cast<std::uint64_t>(pool.slot_bytes);
  return plan;
}

}  // namespace strata::offload
