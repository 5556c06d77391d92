#include "nvme/path_rates.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace strata::nvme {

PathRates::PathRates(std::vector<double> known, std::uint64_t window_bytes)
    : known_(std::move(known)), window_bytes_(window_bytes), paths_(known_.size()) {}

void PathRates::count_busy(Path& path, Clock::time_point now) {
  if (path.in_flight > 0) path.busy += std::chrono::duration<double>(now - path.since).count();
  path.since = now;
}

void PathRates::begin(std::size_t index, Clock::time_point now) {
  Path& path = paths_[index];
  count_busy(path, now);
  ++path.in_flight;
}

bool PathRates::end(std::size_t index, std::uint64_t bytes, Clock::time_point now) {
  Path& path = paths_[index];
  count_busy(path, now);
  --path.in_flight;
  path.bytes += bytes;
  if (path.bytes < window_bytes_ || path.busy <= 0) return false;
  path.old_bytes = path.old_bytes / 2 + static_cast<double>(path.bytes);
  path.old_busy = path.old_busy / 2 + path.busy;
  path.rate = path.old_bytes / path.old_busy;
  path.bytes = 0;
  path.busy = 0;
  return true;
}

std::vector<double> PathRates::weights() const {
  std::vector<double> rates;
  for (const Path& path : paths_) rates.push_back(path.rate);
  const auto usable = [](const std::vector<double>& all) {
    return std::all_of(all.begin(), all.end(), [](double rate) { return rate > 0; });
  };
  if (!usable(rates)) rates = known_;
  if (!usable(rates)) rates.assign(paths_.size(), 1.0);
  const double sum = std::accumulate(rates.begin(), rates.end(), 0.0);
  for (double& rate : rates) rate /= sum;
  return rates;
}

}  // namespace strata::nvme
