// IoBackend on pread and pwrite in a few threads, for machines where io_uring is refused.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "nvme/io_backend.h"

namespace strata::nvme {

// Its threads take requests in the order of submission.
class ThreadBackend final : public IoBackend {
 public:
  // Requires: threads > 0.
  explicit ThreadBackend(unsigned threads);
  ~ThreadBackend() override;

  std::string_view name() const override { return "threads"; }
  void submit(const IoRequest& request) override;
  std::size_t complete(std::span<IoCompletion> out) override;
  void wake() override;

 private:
  void work();
  void stop() noexcept;

  std::mutex mutex_;
  std::condition_variable work_ready_;
  std::condition_variable done_ready_;
  std::deque<IoRequest> requests_;        // guarded by mutex_
  std::deque<IoCompletion> completions_;  // guarded by mutex_
  bool woken_ = false;                    // guarded by mutex_
  bool stopping_ = false;                 // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace strata::nvme
