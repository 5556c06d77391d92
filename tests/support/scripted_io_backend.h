// ScriptedIoBackend: an IoBackend without a disk, whose answers and moments the test decides.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "nvme/io_backend.h"

namespace strata::test {

// What the test and the backend share. Thread-safe.
class IoScript {
 public:
  using Answer = std::function<std::int64_t(const nvme::IoRequest&)>;

  // `answer` performs a request and returns its result; it runs on the queue's thread. It may throw: a broken backend.
  explicit IoScript(Answer answer) : answer_(std::move(answer)) {}

  // Lets up to `count` more requests complete.
  void allow(std::size_t count) {
    const std::lock_guard lock(mutex_);
    allowed_ += count;
    changed_.notify_all();
  }
  void allow_all() { allow(std::size_t{1} << 40); }
  // Blocks until `count` requests were submitted in all, and returns those so far.
  std::vector<nvme::IoRequest> wait_for_submitted(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return submitted_.size() >= count; });
    return submitted_;
  }
  std::vector<nvme::IoRequest> submitted() { return wait_for_submitted(0); }
  std::size_t most_in_flight() {
    const std::lock_guard lock(mutex_);
    return most_in_flight_;
  }

 private:
  friend class ScriptedIoBackend;
  const Answer answer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<nvme::IoRequest> submitted_;  // guarded by mutex_, as all below
  std::deque<nvme::IoRequest> pending_;
  std::size_t allowed_ = 0;
  std::size_t most_in_flight_ = 0;
  bool woken_ = false;
};

// Completes in the order of submission.
class ScriptedIoBackend final : public nvme::IoBackend {
 public:
  explicit ScriptedIoBackend(IoScript& script) : script_(script) {}

  std::string_view name() const override { return "scripted"; }

  void submit(const nvme::IoRequest& request) override {
    const std::lock_guard lock(script_.mutex_);
    script_.submitted_.push_back(request);
    script_.pending_.push_back(request);
    script_.most_in_flight_ = std::max(script_.most_in_flight_, script_.pending_.size());
    script_.changed_.notify_all();
  }

  // One at a time, so that the queue reacts to each.
  std::size_t complete(std::span<nvme::IoCompletion> out) override {
    std::unique_lock lock(script_.mutex_);
    const auto can_complete = [this] { return script_.allowed_ > 0 && !script_.pending_.empty(); };
    script_.changed_.wait(lock, [&] { return script_.woken_ || can_complete(); });
    if (script_.woken_) {
      script_.woken_ = false;
      return 0;
    }
    const nvme::IoRequest request = script_.pending_.front();
    script_.pending_.pop_front();
    --script_.allowed_;
    out[0] = {request.token, script_.answer_(request)};
    return 1;
  }

  void wake() override {
    const std::lock_guard lock(script_.mutex_);
    script_.woken_ = true;
    script_.changed_.notify_all();
  }

 private:
  IoScript& script_;
};

}  // namespace strata::test
