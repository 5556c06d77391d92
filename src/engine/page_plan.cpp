#include "engine/page_plan.h"

#include <utility>
#include <vector>

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

std::size_t passing_slots(const DriveRates& rates, const offload::PoolSize& pool) {
  return offload::passing_slots(drive_of(rates), pool);
}

PagePlan plan_pages(std::span<const offload::TimedAccess> accesses, const DriveRates& rates,
                    const offload::PoolSize& pool) {
  std::vector<offload::ScheduledAccess> scheduled;
  for (const offload::TimedAccess& access : accesses) scheduled.push_back({access.piece, access.access, access.lane});
  const offload::LookAhead plan = offload::plan_look_ahead(accesses, drive_of(rates), pool);
  return {std::make_shared<offload::Schedule>("train", std::move(scheduled), plan.kept), plan.look_ahead_bytes};
}

}  // namespace strata::engine
