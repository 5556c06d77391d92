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
  // `reuse`: how many other passing pages may be used before a passing page is used again, for it to be still there.
  OracleRun(const std::vector<OracleAccess>& accesses, std::vector<bool> stays, std::size_t slots, std::size_t reuse,
            const OracleDrive& drive)
      : accesses_(accesses), stays_(std::move(stays)), drive_(drive), free_slots_(slots) {
    find_misses(reuse);
  }

  // Seconds of one repetition, between the end of the second and that of the last.
  double run() {
    while (computed_ < end_of_run()) {
      settle();
      double next = kNever;
      if (computing_) next = std::min(next, compute_end_);
      for (const Link& link : links_) {
        if (link.busy) next = std::min(next, link.end);
      }
      if (!completing_.empty()) next = std::min(next, completing_.begin()->first);
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
  static constexpr std::size_t kWritten = std::numeric_limits<std::size_t>::max();
  struct Step {       // one access of the whole run
    bool needs_slot;  // takes a slot: it is a miss, or written without being there
    bool needs_read;
    bool last_use;  // the page leaves its slot after this access
    bool dirty;     // and must be written then
  };
  struct Link {
    bool busy = false;
    bool writing = false;
    double end = 0;
  };

  std::size_t end_of_run() const { return (kFilling + kMeasured) * accesses_.size(); }

  // Decides beforehand which accesses find their page still in a slot that pages pass through: where forward turns into
  // backward, and backward into the update.
  void find_misses(std::size_t reuse) {
    const std::size_t n = accesses_.size();
    const std::size_t total = end_of_run() + n;
    steps_.resize(total);
    std::map<std::size_t, std::size_t> last;  // page -> its last access
    std::vector<std::size_t> passing;         // accesses to passing pages, in order
    std::map<std::size_t, std::size_t> rank;  // page -> index in `passing` of its last access
    std::map<std::size_t, bool> dirty;
    for (std::size_t i = 0; i < total; ++i) {
      const OracleAccess& a = accesses_[i % n];
      if (stays_[a.page]) continue;
      bool hit = false;
      if (const auto before = rank.find(a.page); before != rank.end()) {
        std::set<std::size_t> between;
        for (std::size_t j = before->second + 1; j < passing.size() && between.size() <= reuse; ++j) {
          between.insert(accesses_[passing[j] % n].page);
        }
        hit = reuse > 0 && between.size() <= reuse;
        if (!hit) {
          steps_[last[a.page]].last_use = true;
          steps_[last[a.page]].dirty = dirty[a.page];
          dirty[a.page] = false;
        }
      }
      steps_[i] = {!hit, !hit && a.reads, false, false};
      dirty[a.page] = dirty[a.page] || a.writes;
      rank[a.page] = passing.size();
      last[a.page] = i;
      passing.push_back(i);
      if (!hit && i < end_of_run()) misses_.push_back(i);
    }
    const double repetitions = kFilling + kMeasured;
    for (std::size_t i = 0; i < end_of_run(); ++i) {
      reads_ += steps_[i].needs_read / repetitions;
      writes_ += steps_[i].dirty / repetitions;
    }
    present_.assign(total, false);
  }

  // Starts whatever can start now.
  void settle() {
    for (bool changed = true; changed;) {
      changed = false;
      // Grants in order: the page is there, and the computation before the last one has ended (the gather is one
      // ahead).
      if (granted_ < end_of_run() && !blocked_ && is_there(granted_)) {
        grant(granted_++);
        changed = true;
      }
      if (!computing_ && blocked_) {
        computing_ = true;
        blocked_ = false;
        compute_end_ = now_ + accesses_[(granted_ - 1) % accesses_.size()].seconds;
        computing_what_ = granted_;
        changed = true;
      }
      // Slots for the next misses, in order; those that are read go to the reader.
      while (free_slots_ > 0 && next_miss_ < misses_.size()) {
        const std::size_t i = misses_[next_miss_++];
        --free_slots_;
        if (steps_[i].needs_read) {
          for (int q = 0; q < kQuanta; ++q) to_read_.push_back(i);
        } else {
          present_[i] = true;
        }
        changed = true;
      }
      changed = start_links() || changed;
    }
  }

  bool is_there(std::size_t i) const { return !steps_[i].needs_slot || present_[i]; }

  void grant(std::size_t i) {
    if (steps_[i].last_use) {
      if (steps_[i].dirty) {
        dirty_.push_back(i);
      } else {
        ++free_slots_;
      }
    }
    if (accesses_[i % accesses_.size()].seconds > 0) {
      blocked_ = true;
    } else if (!computing_ && computed_ < granted_) {
      computed_ = i + 1;
    }
  }

  bool start_links() {
    bool started = false;
    for (std::size_t l = 0; l < links_.size(); ++l) {
      Link& link = links_[l];
      const bool may_read = l == 0;
      const bool may_write = drive_.half_duplex ? l == 0 : l == 1;
      if (link.busy) continue;
      if (may_read && !to_read_.empty()) {
        link = {true, false, now_ + 1 / drive_.read_pages_per_second / kQuanta};
        started = true;
      } else if (may_write && to_write_ > 0) {
        link = {true, true, now_ + 1 / drive_.write_pages_per_second / kQuanta};
        started = true;
      }
    }
    return started;
  }

  void finish() {
    for (Link& link : links_) {
      if (!link.busy || link.end > now_) continue;
      link.busy = false;
      const double complete = now_ + drive_.latency_seconds;
      if (link.writing) {
        if (--to_write_ % kQuanta == 0) completing_.emplace(complete, kWritten);
      } else {
        const std::size_t i = to_read_.front();
        to_read_.pop_front();
        if (to_read_.empty() || to_read_.front() != i) completing_.emplace(complete, i);
      }
    }
    for (; !completing_.empty() && completing_.begin()->first <= now_; completing_.erase(completing_.begin())) {
      const std::size_t i = completing_.begin()->second;
      if (i == kWritten) {
        ++free_slots_;
      } else {
        present_[i] = true;
      }
    }
    if (computing_ && compute_end_ <= now_) {
      computing_ = false;
      computed_ = computing_what_;
      // What this computation wrote may go now.
      while (!dirty_.empty() && dirty_.front() < computed_) {
        dirty_.pop_front();
        to_write_ += kQuanta;
      }
      if (computed_ <= kFilling * accesses_.size()) measured_from_ = now_;
    }
  }

  const std::vector<OracleAccess>& accesses_;
  const std::vector<bool> stays_;
  const OracleDrive drive_;
  std::vector<Step> steps_;
  std::vector<std::size_t> misses_;
  std::vector<bool> present_;
  std::size_t free_slots_;
  std::size_t next_miss_ = 0;
  std::deque<std::size_t> to_read_;  // quarter pages
  std::size_t to_write_ = 0;         // quarter pages
  std::deque<std::size_t> dirty_;    // granted, their computation not ended
  std::size_t granted_ = 0;
  std::size_t computed_ = 0;
  std::size_t computing_what_ = 0;
  bool blocked_ = false;  // a computation waits for the one before it
  bool computing_ = false;
  double compute_end_ = 0;
  double now_ = 0;
  double measured_from_ = 0;
  double reads_ = 0;
  double writes_ = 0;
  std::array<Link, 2> links_;
  std::multimap<double, std::size_t> completing_;  // read misses, or kWritten
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
inline OracleAnswer best_pipeline(const std::vector<OracleAccess>& accesses, std::size_t slots, std::size_t ahead,
                                  const OracleDrive& drive) {
  std::size_t pages = 0;
  double compute = 0;
  std::map<std::size_t, std::size_t> uses;
  for (const OracleAccess& a : accesses) {
    pages = std::max(pages, a.page + 1);
    compute += a.seconds;
    ++uses[a.page];
  }
  std::vector<std::vector<std::size_t>> classes(2);
  std::set<std::size_t> seen;
  for (const OracleAccess& a : accesses) {
    if (seen.insert(a.page).second) classes[uses[a.page] > 1 ? 0 : 1].push_back(a.page);
  }
  OracleAnswer best;
  best.least_seconds = least_seconds(accesses, slots, drive, ahead);
  if (uses.size() <= slots) return {compute, 0, 0, uses.size(), best.least_seconds};
  best.seconds = std::numeric_limits<double>::infinity();
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
        OracleRun run(accesses, keep_evenly(classes, {weights, states}, pages), passing, reuse, drive);
        const double seconds = run.run();
        if (seconds < best.seconds * (1 - 1e-9)) {
          best.seconds = seconds;
          best.reads = run.reads();
          best.writes = run.writes();
          best.kept = kept;
        }
        if (classes[0].empty()) break;  // without weights nothing turns
      }
      if (classes[0].empty()) break;
    }
  }
  return best;
}

}  // namespace strata::test
