// How fast a step could be at best, proven, whatever its schedule. It knows nothing of offload/.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace strata::test {

// What one lane does next: it needs a page, or it computes. Accesses of one lane come in their order; the order of the
// whole list is that in which they are wanted.
struct OracleAccess {
  static constexpr std::size_t kNoPage = std::numeric_limits<std::size_t>::max();

  std::size_t page = 0;  // numbered from 0
  bool reads = false;
  bool writes = false;
  double seconds = 0;    // of computing, when there is no page
  std::size_t lane = 0;  // 0: layers; 1: updates beside them
  std::size_t back = 0;  // 0, or: not before the computing of the access so many places earlier, of the other lane
  double size = 1;       // of the page
};
struct OracleStep {
  std::vector<OracleAccess> accesses;  // repeated
  std::size_t pages = 0;
};
struct OracleDrive {
  double read_pages_per_second = 0;
  double write_pages_per_second = 0;
  double latency_seconds = 0;  // from the end of a transfer to its completion
  bool half_duplex = false;
};

// What a page-replacement algorithm must read at least, per repetition, with `slots` slots: MIN, which evicts the page
// whose next use lies farthest ahead (Belady, "A study of replacement algorithms for a virtual-storage computer", IBM
// Systems Journal 5(2), 1966), on `step` repeated. Requires: one lane, whole pages.
inline double least_reads(const OracleStep& step, std::size_t slots) {
  std::vector<OracleAccess> accesses;
  for (const OracleAccess& a : step.accesses) {
    if (a.page != OracleAccess::kNoPage) accesses.push_back(a);
  }
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

// What a run of accesses computes, and the pages, by size, that it reads before it changes them and that it changes.
struct OracleWork {
  double compute = 0;
  std::map<std::size_t, double> read;
  std::map<std::size_t, double> changed;

  void add(const OracleAccess& a) {
    compute += a.seconds;
    if (a.page == OracleAccess::kNoPage) return;
    if (a.reads && !changed.contains(a.page)) read[a.page] = a.size;
    if (a.writes) changed[a.page] = a.size;
  }
  // A time that it cannot beat: at most `slots` of the pages that it reads can have been there when it began, beside
  // `ahead` that were already taken to the device, and at most `slots` of those that it changes can still be there,
  // unwritten, when it ends; the rest crosses the drive meanwhile.
  double least_seconds(std::size_t slots, std::size_t ahead, const OracleDrive& drive) const {
    const auto beyond = [](const std::map<std::size_t, double>& pages, std::size_t room) {
      double sum = 0;
      for (const auto& [page, size] : pages) sum += size;
      return std::max(0.0, sum - static_cast<double>(room));
    };
    const double reading = beyond(read, slots + ahead) / drive.read_pages_per_second;
    const double writing = beyond(changed, slots) / drive.write_pages_per_second;
    return std::max(compute, drive.half_duplex ? reading + writing : std::max(reading, writing));
  }
};

// A time that no schedule of one lane can beat: a step is a chain of runs of accesses, and the longest chain counts.
inline double least_seconds(const OracleStep& step, std::size_t slots, const OracleDrive& drive, std::size_t ahead) {
  const std::vector<OracleAccess>& accesses = step.accesses;
  std::vector<double> least(accesses.size() + 1, 0);
  for (std::size_t begin = 0; begin < accesses.size(); ++begin) {
    if (begin > 0 && accesses[begin - 1].seconds == 0) continue;
    OracleWork run;
    for (std::size_t end = begin; end < accesses.size(); ++end) {
      run.add(accesses[end]);
      // Runs end with a computation: before it, what an access is there to change has not changed.
      if (accesses[end].seconds == 0 && end + 1 < accesses.size()) continue;
      least[end + 1] = std::max(least[end + 1], least[begin] + run.least_seconds(slots, ahead, drive));
    }
  }
  return std::max(least.back(), least_reads(step, slots) / drive.read_pages_per_second);
}

// The same for updates beside the layers. All updates lie between the computing that the first one waits for and the
// gather that waits for the last one; the layers from there on come after them.
inline double least_seconds_beside(const OracleStep& step, std::size_t slots, const OracleDrive& drive,
                                   std::size_t ahead) {
  const std::vector<OracleAccess>& accesses = step.accesses;
  const std::size_t n = accesses.size();
  std::size_t first = n, last = 0;  // of the updates
  OracleWork layers, updates, after;
  for (std::size_t i = 0; i < n; ++i) {
    (accesses[i].lane == 0 ? layers : updates).add(accesses[i]);
    if (accesses[i].lane == 0) continue;
    first = std::min(first, i);
    last = i;
  }
  const std::size_t known = first + n - accesses[first].back;  // in the repetition before, or in this one
  const std::size_t waits =
      static_cast<std::size_t>(std::find_if(accesses.begin(), accesses.end(),
                                            [&](const OracleAccess& a) {
                                              const auto at = static_cast<std::size_t>(&a - accesses.data());
                                              return a.lane == 0 && a.back > 0 && (at + n - a.back) % n == last;
                                            }) -
                               accesses.begin());
  for (std::size_t i = waits;; i = (i + 1) % n) {
    if (accesses[i].lane == 0) after.add(accesses[i]);
    if (i == known % n) break;
  }
  return std::max(updates.least_seconds(slots, 0, drive) + after.least_seconds(slots, ahead, drive),
                  layers.least_seconds(slots, ahead, drive));
}

}  // namespace strata::test
