#include "engine/page_plan.h"

#include <algorithm>

namespace strata::engine {
namespace {

constexpr double kUnknownRate = 2e9;
constexpr double kLatency = 200e-6;  // of a request of a page to a busy drive: some are in flight before it

offload::DriveRates drive_of(const DriveRates& rates) {
  const auto known = [](double rate) { return rate > 0 ? rate : kUnknownRate; };
  return {known(rates.read), known(rates.write), kLatency,
          duplex_of(rates) < 0.5 ? offload::Duplex::Half : offload::Duplex::Full};
}

}  // namespace

PagePlan plan_pages(std::vector<offload::ScheduledAccess> accesses, const PhaseSeconds& seconds,
                    const DriveRates& rates, const offload::PoolSize& pool) {
  const bool overlapped = std::any_of(accesses.begin(), accesses.end(), [](const offload::ScheduledAccess& access) {
    return access.lane == offload::Lane::Updates;
  });
  // Overlapped, all of the step is one phase: it lasts as long as its computing or its transfers.
  const auto update = overlapped
                          ? accesses.begin()
                          : std::find_if(accesses.begin(), accesses.end(),
                                         [](const offload::ScheduledAccess& access) { return writes(access.access); });
  const auto share = [](double total, std::ptrdiff_t accesses_of_phase) {
    return accesses_of_phase > 0 ? total / static_cast<double>(accesses_of_phase) : 0;
  };
  const double of_gather = share(seconds.gathers, update - accesses.begin());
  const double of_update = share(seconds.update + (overlapped ? seconds.gathers : 0), accesses.end() - update);
  std::vector<offload::TimedAccess> timed;
  for (auto access = accesses.begin(); access != accesses.end(); ++access) {
    timed.push_back({access->piece, access->access, access < update ? of_gather : of_update});
  }
  const offload::LookAhead plan = offload::plan_look_ahead(timed, drive_of(rates), pool);
  return {std::make_shared<offload::Schedule>("train", std::move(accesses), plan.kept), plan.look_ahead_bytes};
}

}  // namespace strata::engine
