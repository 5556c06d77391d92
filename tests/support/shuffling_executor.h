// ShufflingExecutor: one thread that runs what was posted in a random order, for completions that come back in any
// order.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "core/executor.h"

namespace strata::test {

// Before each task the thread lets a random number of tasks gather to choose from, or a moment pass when no more come.
// It does not yield() instead: on a busy machine every yield costs a time slice. The destructor runs what is left, then
// joins.
class ShufflingExecutor final : public Executor {
 public:
  explicit ShufflingExecutor(std::uint64_t seed) : random_(seed), thread_([this] { run(); }) {}
  ~ShufflingExecutor() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  ShufflingExecutor(const ShufflingExecutor&) = delete;
  ShufflingExecutor& operator=(const ShufflingExecutor&) = delete;

  void post(std::function<void()> task) override {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
  }

 private:
  static constexpr std::chrono::microseconds kMoment{50};

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const auto enough = std::uniform_int_distribution<std::size_t>(1, 4)(random_);
      wake_.wait_for(lock, kMoment, [&] { return stopping_ || tasks_.size() >= enough; });
      std::swap(tasks_[std::uniform_int_distribution<std::size_t>(0, tasks_.size() - 1)(random_)], tasks_.back());
      const std::function<void()> task = std::move(tasks_.back());
      tasks_.pop_back();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mt19937_64 random_;  // thread_ only
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::function<void()>> tasks_;  // guarded by mutex_
  bool stopping_ = false;                     // guarded by mutex_
  std::thread thread_;
};

}  // namespace strata::test
