// VirtualTime: when things that threads do end, as a number that no clock and no scheduler has a say in.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <queue>
#include <tuple>
#include <vector>

namespace strata::test {

// What is done is written down as steps: a step comes after the one that its thread made before, and after those of
// other threads that this thread waited for. When they end is calculated from that alone.
// A step may occupy a link. A link serves one step at a time: the one that is ready first, and of those that are ready
// at the same time the one whose thread has the lowest order. So what is calculated does not depend on how the threads
// really ran, if they wait for each other in the same way each time.
// Thread-safe. A thread's steps are forgotten when it turns to another VirtualTime.
class VirtualTime {
 public:
  using Step = std::size_t;
  static constexpr Step kStart = std::numeric_limits<Step>::max();  // of a thread that made none; at time 0
  static constexpr std::size_t kNoLink = std::numeric_limits<std::size_t>::max();

  explicit VirtualTime(std::size_t links) : links_(links) {}

  // Of the calling thread; 0 where it never says. Only one thread of each order may use links.
  void set_order(std::size_t order) { mine().order = order; }
  // The last step of the calling thread.
  Step last() const { return mine().last; }
  // What the calling thread does from now on comes after `step` as well.
  void follow(Step step) {
    Mine& my = mine();
    if (step == kStart || step == my.last) return;
    my.last = my.last == kStart ? step : add({{my.last, step}, 0, kNoLink, my.order});
  }
  // The calling thread takes that long, on `link` if there is one.
  void spend(double seconds, std::size_t link = kNoLink) {
    Mine& my = mine();
    my.last = add({{my.last, kStart}, seconds, link, my.order});
  }

  // When all steps so far have ended.
  double end() const {
    const std::lock_guard lock(mutex_);
    std::vector<double> ready(steps_.size(), 0);
    std::vector<std::size_t> missing(steps_.size(), 0);
    std::vector<std::vector<Step>> followers(steps_.size());
    // Steps off the links go first, so that all that becomes ready at one time is known when a link chooses.
    using Next = std::tuple<double, bool, std::size_t, Step>;
    std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
    const auto add_next = [&](Step i) { next.emplace(ready[i], steps_[i].link != kNoLink, steps_[i].order, i); };
    for (Step i = 0; i < steps_.size(); ++i) {
      for (const Step before : steps_[i].after) {
        if (before == kStart) continue;
        followers[before].push_back(i);
        ++missing[i];
      }
      if (missing[i] == 0) add_next(i);
    }
    std::vector<double> link_free(links_, 0);
    double last_end = 0;
    while (!next.empty()) {
      const Step i = std::get<3>(next.top());
      next.pop();
      const Made& step = steps_[i];
      const double begin = step.link == kNoLink ? ready[i] : std::max(ready[i], link_free[step.link]);
      const double end = begin + step.seconds;
      if (step.link != kNoLink) link_free[step.link] = end;
      last_end = std::max(last_end, end);
      for (const Step follower : followers[i]) {
        ready[follower] = std::max(ready[follower], end);
        if (--missing[follower] == 0) add_next(follower);
      }
    }
    return last_end;
  }

 private:
  struct Made {
    std::array<Step, 2> after;
    double seconds;
    std::size_t link;
    std::size_t order;
  };
  struct Mine {
    std::uint64_t time = 0;  // to which the rest belongs
    Step last = kStart;
    std::size_t order = 0;
  };

  Mine& mine() const {
    thread_local Mine mine;
    if (mine.time != number_) mine = {number_, kStart, 0};
    return mine;
  }
  Step add(const Made& step) {
    const std::lock_guard lock(mutex_);
    steps_.push_back(step);
    return steps_.size() - 1;
  }

  static inline std::atomic<std::uint64_t> made_{0};
  const std::uint64_t number_ = ++made_;  // of all VirtualTimes: an address may be used again
  const std::size_t links_;
  mutable std::mutex mutex_;
  std::vector<Made> steps_;  // guarded by mutex_
};

}  // namespace strata::test
