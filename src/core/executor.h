// Executor: where continuations run.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace strata {

class Executor {
 public:
  virtual ~Executor() = default;
  // Runs `task` later, in the order of posting. Callable from any thread. Tasks must not throw.
  virtual void post(std::function<void()> task) = 0;
};

// One named thread with a FIFO. The destructor runs what is already queued, then joins.
class ThreadExecutor final : public Executor {
 public:
  explicit ThreadExecutor(std::string name);
  ~ThreadExecutor() override;
  ThreadExecutor(const ThreadExecutor&) = delete;
  ThreadExecutor& operator=(const ThreadExecutor&) = delete;

  void post(std::function<void()> task) override;
  // Blocks until everything posted before this call has run. Requires: not called from the executor's own thread.
  void drain();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  bool stopping_ = false;                    // guarded by mutex_
  std::thread thread_;
};

}  // namespace strata
