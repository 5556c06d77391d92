// PipelineOracle: how fast a step could be whose pages pass through a given number of slots. It knows nothing of
// offload/: an own event simulation and an own choice of what stays cached.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "support/pipeline_bound.h"

namespace strata::test {

struct OracleAnswer {
  double seconds = 0;  // of a step in the steady state, the best found
  double reads = 0;    // pages of that step
  double writes = 0;
  std::size_t kept = 0;      // pages that never leave
  double least_seconds = 0;  // no schedule whatever can be faster
};

// One division of the slots, simulated event by event. Pages of `stays` never move. The others pass through `slots`
// slots. No link is ever idle while it may move something, and what it moves next is what is due first: misses in the
// order of their accesses, and the write that frees the slot of the i-th miss before the miss that follows `slots`
// later. On one machine with preemption, for given releases, nothing is less late than the earliest due date first
// (Horn, "Some simple scheduling algorithms", Naval Research Logistics Quarterly 21, 1974). On a half-duplex link that
// order means: read while there is a slot to read into, else write. Preemption is by quarter pages. Releases depend on
// the schedule itself here (a write follows a computation), so this is the best found, not a proof: least_seconds() is
// one.
class OracleRun {
 public:
  struct Retention {
    // How many other passing pages may be used before a passing page is used again, for it to be still there.
    std::size_t reuse = 0;
    bool across_lanes = false;  // what an update leaves waits for its gather, and what a gather leaves for its update
  };
  OracleRun(const OracleStep& step, std::vector<bool> stays, std::size_t slots, const Retention& retention,
            const OracleDrive& drive)
      : accesses_(step.accesses), stays_(std::move(stays)), drive_(drive), free_slots_(slots) {
    find_misses(retention);
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      Lane& lane = lanes_[access(i).lane];
      steps_[i].rank = lane.order.size();
      lane.order.push_back(i);
    }
    for (std::size_t i = 0; i < end_of_run(); ++i) {
      if (access(i).lane == 0) layers_end_ = steps_[i].rank + 1;
      if (access(i).lane == 0 && i < kFilling * accesses_.size()) filling_end_ = steps_[i].rank + 1;
    }
  }

  // Seconds of one repetition, between the end of the second and that of the last.
  double run() {
    while (lanes_[0].computed < layers_end_) {
      settle();
      double next = kNever;
      for (const Lane& lane : lanes_) {
        if (lane.computing) next = std::min(next, lane.compute_end);
      }
      for (const Link& link : links_) {
        if (link.busy) next = std::min(next, link.end);
      }
      if (!completing_.empty()) next = std::min(next, completing_.begin()->first);
      if (lanes_[0].computed >= layers_end_) break;
      if (next == kNever) return kNever;  // too few slots
      now_ = next;
      finish();
    }
    return (now_ - measured_from_) / kMeasured;
  }
  double reads() const { return reads_; }
  double writes() const { return writes_; }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  static constexpr std::size_t kFilling = 2;
  static constexpr std::size_t kMeasured = 2;
  static constexpr int kQuanta = 4;
  struct Step {               // one access of the whole run
    bool needs_slot = false;  // takes a slot: it is a miss, or written without being there
    bool needs_read = false;
    bool last_use = false;  // the page leaves its slot after this access
    bool dirty = false;     // and must be written then
    std::size_t rank = 0;   // in its lane
  };
  struct Lane {
    std::vector<std::size_t> order;  // its accesses
    std::deque<std::size_t> dirty;   // of those granted, their computation not ended
    std::size_t granted = 0;
    std::size_t computed = 0;
    std::size_t computing_what = 0;
    bool blocked = false;  // a computation waits for the one before it
    bool computing = false;
    double compute_end = 0;
  };
  struct Link {
    bool busy = false;
    bool writing = false;
    double end = 0;
  };
  struct Quantum {
    std::size_t access;
    bool last;
  };

  const OracleAccess& access(std::size_t i) const { return accesses_[i % accesses_.size()]; }
  std::size_t end_of_run() const { return (kFilling + kMeasured) * accesses_.size(); }

  // Decides beforehand which accesses find their page still in a slot that pages pass through: where forward turns into
  // backward, and backward into the update.
  void find_misses(const Retention& retention) {
    const std::size_t total = end_of_run() + accesses_.size();
    steps_.resize(total);
    std::map<std::size_t, std::size_t> last;  // page -> its last access
    std::vector<std::size_t> passing;         // accesses to passing pages, in order
    std::map<std::size_t, std::size_t> rank;  // page -> index in `passing` of its last access
    std::map<std::size_t, bool> dirty;
    for (std::size_t i = 0; i < total; ++i) {
      const OracleAccess& a = access(i);
      if (a.page == OracleAccess::kNoPage || stays_[a.page]) continue;
      bool hit = false;
      if (const auto before = rank.find(a.page); before != rank.end()) {
        std::set<std::size_t> between;
        for (std::size_t j = before->second + 1; j < passing.size() && between.size() <= retention.reuse; ++j) {
          between.insert(access(passing[j]).page);
        }
        hit = retention.reuse > 0 && between.size() <= retention.reuse;
        if (retention.across_lanes && access(last[a.page]).lane != a.lane) hit = true;
        if (!hit) {
          steps_[last[a.page]].last_use = true;
          steps_[last[a.page]].dirty = dirty[a.page];
          dirty[a.page] = false;
        }
      }
      steps_[i].needs_slot = !hit;
      steps_[i].needs_read = !hit && a.reads;
      dirty[a.page] = dirty[a.page] || a.writes;
      rank[a.page] = passing.size();
      last[a.page] = i;
      passing.push_back(i);
      if (!hit) misses_.push_back(i);
    }
    const double repetitions = kFilling + kMeasured;
    for (std::size_t i = 0; i < end_of_run(); ++i) {
      reads_ += steps_[i].needs_read * access(i).size / repetitions;
      writes_ += steps_[i].dirty * access(i).size / repetitions;
    }
    present_.assign(total, false);
  }

  // Starts whatever can start now.
  void settle() {
    for (bool changed = true; changed;) {
      changed = false;
      for (Lane& lane : lanes_) {
        // Grants in order: the page is there, and the computation before the last one has ended (the gather is one
        // ahead).
        while (lane.granted < lane.order.size() && !lane.blocked && may_grant(lane.order[lane.granted])) {
          grant(lane, lane.order[lane.granted++]);
          changed = true;
        }
        if (!lane.computing && lane.blocked) {
          lane.computing = true;
          lane.blocked = false;
          lane.compute_end = now_ + access(lane.order[lane.granted - 1]).seconds;
          lane.computing_what = lane.granted;
          changed = true;
        }
      }
      // Slots for the next misses, in order; those that are read go to the reader.
      while (free_slots_ > 0 && next_miss_ < misses_.size()) {
        const std::size_t i = misses_[next_miss_++];
        --free_slots_;
        if (steps_[i].needs_read) {
          for (int q = 1; q <= kQuanta; ++q) to_read_.push_back({i, q == kQuanta});
        } else {
          present_[i] = true;
        }
        changed = true;
      }
      changed = start_links() || changed;
    }
  }

  bool may_grant(std::size_t i) const {
    if (steps_[i].needs_slot && !present_[i]) return false;
    const std::size_t back = access(i).back;
    return back == 0 || i < back || lanes_[access(i - back).lane].computed > steps_[i - back].rank;
  }

  void grant(Lane& lane, std::size_t i) {
    if (steps_[i].last_use) {
      if (steps_[i].dirty) {
        lane.dirty.push_back(i);
      } else {
        ++free_slots_;
      }
    }
    if (access(i).page == OracleAccess::kNoPage && access(i).back == 0) {
      lane.blocked = true;
    } else if (!lane.computing && lane.dirty.empty()) {
      lane.computed = steps_[i].rank + 1;
    }
  }

  bool start_links() {
    bool started = false;
    for (std::size_t l = 0; l < links_.size(); ++l) {
      Link& link = links_[l];
      const bool may_read = l == 0;
      const bool may_write = drive_.half_duplex ? l == 0 : l == 1;
      if (link.busy) continue;
      const auto seconds = [&](const Quantum& quantum, double rate) {
        return access(quantum.access).size / rate / kQuanta;
      };
      if (may_read && !to_read_.empty()) {
        link = {true, false, now_ + seconds(to_read_.front(), drive_.read_pages_per_second)};
        started = true;
      } else if (may_write && !to_write_.empty()) {
        link = {true, true, now_ + seconds(to_write_.front(), drive_.write_pages_per_second)};
        started = true;
      }
    }
    return started;
  }

  void finish() {
    for (Link& link : links_) {
      if (!link.busy || link.end > now_) continue;
      link.busy = false;
      std::deque<Quantum>& queue = link.writing ? to_write_ : to_read_;
      const Quantum done = queue.front();
      queue.pop_front();
      if (done.last) completing_.emplace(now_ + drive_.latency_seconds, std::pair(done.access, link.writing));
    }
    for (; !completing_.empty() && completing_.begin()->first <= now_; completing_.erase(completing_.begin())) {
      const auto [i, written] = completing_.begin()->second;
      if (written) {
        ++free_slots_;
      } else {
        present_[i] = true;
      }
    }
    for (Lane& lane : lanes_) {
      if (!lane.computing || lane.compute_end > now_) continue;
      lane.computing = false;
      lane.computed = lane.computing_what;
      // What this computation wrote may go now.
      while (!lane.dirty.empty() && steps_[lane.dirty.front()].rank < lane.computed) {
        for (int q = 1; q <= kQuanta; ++q) to_write_.push_back({lane.dirty.front(), q == kQuanta});
        lane.dirty.pop_front();
      }
      if (&lane == lanes_.data() && lane.computed <= filling_end_) measured_from_ = now_;
    }
  }

  const std::vector<OracleAccess>& accesses_;
  const std::vector<bool> stays_;
  const OracleDrive drive_;
  std::vector<Step> steps_;
  std::array<Lane, 2> lanes_;
  std::size_t layers_end_ = 0;   // accesses of lane 0 in the whole run
  std::size_t filling_end_ = 0;  // of them, before what is measured
  std::vector<std::size_t> misses_;
  std::vector<bool> present_;
  std::size_t free_slots_;
  std::size_t next_miss_ = 0;
  std::deque<Quantum> to_read_;
  std::deque<Quantum> to_write_;
  double now_ = 0;
  double measured_from_ = 0;
  double reads_ = 0;
  double writes_ = 0;
  std::array<Link, 2> links_;
  std::multimap<double, std::pair<std::size_t, bool>> completing_;  // access, and whether it was written
};

// Of the pages of each class, in the order of their first access, keeps a given number, spread evenly.
inline std::vector<bool> keep_evenly(const std::vector<std::vector<std::size_t>>& classes,
                                     const std::vector<std::size_t>& keep, std::size_t pages) {
  std::vector<bool> stays(pages, false);
  for (std::size_t c = 0; c < classes.size(); ++c) {
    const std::size_t n = classes[c].size();
    for (std::size_t j = 0; j < n; ++j) stays[classes[c][j]] = (j + 1) * keep[c] / n > j * keep[c] / n;
  }
  return stays;
}

// The best over how many pages stay, which of two classes of pages (those used more than once a step: weights; and the
// others: states) they are taken from, and how much is reused where the order turns.
// `ahead`: accesses of the largest gather, whose pages the device may hold beside the slots.
inline OracleAnswer best_pipeline(const OracleStep& step, std::size_t slots, std::size_t ahead,
                                  const OracleDrive& drive) {
  std::map<std::size_t, std::size_t> uses;
  std::array<double, 2> compute{};
  std::vector<std::vector<std::size_t>> classes(2);
  std::set<std::size_t> seen;
  bool beside = false;
  for (const OracleAccess& a : step.accesses) {
    compute[a.lane] += a.seconds;
    beside = beside || a.lane == 1;
    if (a.page != OracleAccess::kNoPage) ++uses[a.page];
  }
  for (const OracleAccess& a : step.accesses) {
    if (a.page == OracleAccess::kNoPage || !seen.insert(a.page).second) continue;
    classes[uses[a.page] > 1 ? 0 : 1].push_back(a.page);
  }
  OracleAnswer best;
  best.least_seconds =
      beside ? least_seconds_beside(step, slots, drive, ahead) : least_seconds(step, slots, drive, ahead);
  best.seconds = std::numeric_limits<double>::infinity();
  const auto consider = [&](std::size_t kept, const std::vector<std::size_t>& division,
                            const OracleRun::Retention& retention) {
    OracleRun run(step, keep_evenly(classes, division, step.pages), slots - kept, retention, drive);
    const double seconds = run.run();
    if (seconds >= best.seconds * (1 - 1e-9)) return;
    best.seconds = seconds;
    best.reads = run.reads();
    best.writes = run.writes();
    best.kept = kept;
  };
  if (step.pages <= slots) {
    consider(step.pages, {classes[0].size(), classes[1].size()}, {});
    return best;
  }
  const std::size_t stride = std::max<std::size_t>(1, slots / 24);
  for (std::size_t kept = 0; kept + 2 <= slots; kept += kept + 10 < slots ? stride : 1) {
    for (const double of_weights : {0.0, 0.25, 0.5, 0.75, 1.0}) {
      std::size_t weights =
          std::min(classes[0].size(), static_cast<std::size_t>(of_weights * static_cast<double>(kept)));
      const std::size_t states = std::min(classes[1].size(), kept - weights);
      weights = kept - states;
      if (weights > classes[0].size()) continue;
      const std::size_t passing = slots - kept;
      for (const std::size_t reuse : {std::size_t{0}, passing / 4, passing / 2, passing * 3 / 4}) {
        consider(kept, {weights, states}, {reuse, false});
        if (classes[0].empty()) break;  // without weights nothing turns
        if (beside) consider(kept, {weights, states}, {reuse, true});
      }
      if (classes[0].empty()) break;
    }
  }
  return best;
}

}  // namespace strata::test
