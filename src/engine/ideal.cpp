#include "engine/ideal.h"

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace strata::engine {
namespace {

double seconds_of(std::uint64_t bytes, double rate) {
  if (bytes == 0) return 0;
  return rate > 0 ? static_cast<double>(bytes) / rate : std::numeric_limits<double>::infinity();
}

}  // namespace

double duplex_of(const DriveRates& rates) {
  if (!(rates.read > 0) || !(rates.write > 0) || !(rates.mixed > 0)) return 0;
  // One byte each way: alone 1/R and 1/W, together 2/M.
  const double read = 1 / rates.read;
  const double write = 1 / rates.write;
  return std::clamp((read + write - 2 / rates.mixed) / std::min(read, write), 0.0, 1.0);
}

double drive_seconds(std::uint64_t bytes_read, std::uint64_t bytes_written, const DriveRates& rates) {
  const double read = seconds_of(bytes_read, rates.read);
  const double write = seconds_of(bytes_written, rates.write);
  return read + write - duplex_of(rates) * std::min(read, write);
}

ResourceTime binding_resource(std::span<const ResourceTime> resources) {
  STRATA_EXPECTS(!resources.empty(), "a step uses at least one resource");
  return *std::max_element(resources.begin(), resources.end(),
                           [](const ResourceTime& a, const ResourceTime& b) { return a.seconds < b.seconds; });
}

}  // namespace strata::engine
