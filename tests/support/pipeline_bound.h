// How fast a step could be at best, proven, whatever its schedule. It knows nothing of offload/.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace strata::test {

// Pages are numbered from 0; `seconds` of computing follow the access and come before the next access is needed.
struct OracleAccess {
  std::size_t page = 0;
  bool reads = false;
  bool writes = false;
  double seconds = 0;
};
struct OracleDrive {
  double read_pages_per_second = 0;
  double write_pages_per_second = 0;
  double latency_seconds = 0;  // from the end of a transfer to its completion
  bool half_duplex = false;
};

// What a page-replacement algorithm must read at least, per repetition, with `slots` slots: MIN, which evicts the page
// whose next use lies farthest ahead (Belady, "A study of replacement algorithms for a virtual-storage computer", IBM
// Systems Journal 5(2), 1966), on `accesses` repeated.
inline double least_reads(const std::vector<OracleAccess>& accesses, std::size_t slots) {
  const std::size_t n = accesses.size();
  std::map<std::size_t, std::vector<std::size_t>> uses;
  for (std::size_t i = 0; i < n; ++i) uses[accesses[i].page].push_back(i);
  const auto next_use = [&](std::size_t page, std::size_t after) {
    const std::vector<std::size_t>& at = uses[page];
    const auto found = std::upper_bound(at.begin(), at.end(), after % n);
    return after - after % n + (found != at.end() ? *found : n + at.front());
  };
  constexpr std::size_t kFilling = 3;
  constexpr std::size_t kMeasured = 20;
  std::set<std::pair<std::size_t, std::size_t>> cached;  // (next use, page)
  std::size_t reads = 0;
  for (std::size_t i = 0; i < (kFilling + kMeasured) * n; ++i) {
    const OracleAccess& access = accesses[i % n];
    if (cached.erase({i, access.page}) == 0) {
      if (access.reads && i >= kFilling * n) ++reads;
      if (cached.size() == slots) cached.erase(std::prev(cached.end()));
    }
    cached.emplace(next_use(access.page, i), access.page);
  }
  return static_cast<double>(reads) / kMeasured;
}

// A time that no schedule can beat. While a run of consecutive accesses is computed, at most `slots` of the pages that
// it reads can have been there when it began, beside those that `ahead` accesses had already taken to the device, and
// at most `slots` of those that it changes can still be there, unwritten, when it ends; the rest crosses the drive
// meanwhile. A step is a chain of such runs: the longest chain counts.
inline double least_seconds(const std::vector<OracleAccess>& accesses, std::size_t slots, const OracleDrive& drive,
                            std::size_t ahead) {
  std::vector<double> least(accesses.size() + 1, 0);
  for (std::size_t begin = 0; begin < accesses.size(); ++begin) {
    std::set<std::size_t> read;
    std::set<std::size_t> changed;
    double compute = 0;
    for (std::size_t end = begin; end < accesses.size(); ++end) {
      const OracleAccess& a = accesses[end];
      if (a.reads && !changed.contains(a.page)) read.insert(a.page);
      if (a.writes) changed.insert(a.page);
      compute += a.seconds;
      // Runs end with a computation: before it, what an access is there to change has not changed.
      if (a.seconds == 0 && end + 1 < accesses.size()) continue;
      const auto beyond = [](std::size_t pages, std::size_t room) {
        return static_cast<double>(pages - std::min(pages, room));
      };
      const double reading = beyond(read.size(), slots + ahead) / drive.read_pages_per_second;
      const double writing = beyond(changed.size(), slots) / drive.write_pages_per_second;
      const double links = drive.half_duplex ? reading + writing : std::max(reading, writing);
      least[end + 1] = std::max(least[end + 1], least[begin] + std::max(compute, links));
    }
  }
  const double reading = least_reads(accesses, slots) / drive.read_pages_per_second;
  return std::max(least.back(), reading);
}

}  // namespace strata::test
