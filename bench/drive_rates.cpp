#include "bench/drive_rates.h"

#include <array>
#include <vector>

#include "core/statistics.h"
#include "nvme/drive_probe.h"

namespace strata::bench {

engine::DriveRates measure_drive_rates(const std::filesystem::path& dir) {
  nvme::DriveProbe probe({.directory = dir, .bytes = std::uint64_t{512} << 20, .sustained_bytes = 0});
  const nvme::DeviceProfile profile = nvme::load_profile(dir).value_or(nvme::DeviceProfile{});
  std::array<std::vector<double>, 3> rates;
  constexpr std::array kPatterns{nvme::Pattern::Read, nvme::Pattern::Write, nvme::Pattern::Mixed};
  for (int round = 0; round < 5; ++round) {
    for (std::size_t i = 0; i < kPatterns.size(); ++i) {
      nvme::Trial trial;
      trial.pattern = kPatterns[i];
      trial.block_bytes = profile.block_bytes;
      trial.depth = profile.queue_depth;
      trial.ring = profile.ring;
      trial.burst_bytes = profile.burst_bytes;
      trial.seconds = 0.25;
      rates[i].push_back(probe.measure(trial).rate);
    }
  }
  return {median(rates[0]), median(rates[1]), median(rates[2])};
}

}  // namespace strata::bench
