// ManualExecutor: runs posted tasks when the test says so, in the order the test chooses.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/executor.h"

namespace strata::test {

// Tasks run on the thread that calls run*(). Thread-safety: all members from any thread. Tasks that were never run are
// destroyed with the executor, which cancels the events whose sources they hold.
class ManualExecutor final : public Executor {
 public:
  void post(std::function<void()> task) override {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }

  std::size_t pending() const {
    const std::lock_guard lock(mutex_);
    return tasks_.size();
  }

  // Runs the pending task `index`, 0 being the oldest. Requires: index < pending().
  void run(std::size_t index) {
    std::function<void()> task;
    {
      const std::lock_guard lock(mutex_);
      STRATA_EXPECTS(index < tasks_.size(), "no pending task " + std::to_string(index));
      const auto at = tasks_.begin() + static_cast<std::ptrdiff_t>(index);
      task = std::move(*at);
      tasks_.erase(at);
    }
    task();
  }

  // Runs the oldest task; false when there is none.
  bool run_one() {
    if (pending() == 0) return false;
    run(0);
    return true;
  }

  // Runs tasks, those posted meanwhile included, until none is left; returns how many ran.
  std::size_t run_all() {
    std::size_t ran = 0;
    while (run_one()) ++ran;
    return ran;
  }

  // As run_all(), each time a random one of the pending tasks.
  std::size_t run_all_shuffled(std::mt19937_64& random) {
    std::size_t ran = 0;
    for (std::size_t n = pending(); n != 0; n = pending(), ++ran) {
      run(std::uniform_int_distribution<std::size_t>(0, n - 1)(random));
    }
    return ran;
  }

 private:
  mutable std::mutex mutex_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
};

}  // namespace strata::test
