#include "nvme/thread_backend.h"

#include <unistd.h>

#include <cerrno>

#include "core/error.h"

namespace strata::nvme {
namespace {

IoCompletion perform(const IoRequest& request) {
  const auto offset = static_cast<off_t>(request.offset);
  const ssize_t moved = request.op == IoOp::Read ? ::pread(request.fd, request.data, request.bytes, offset)
                                                 : ::pwrite(request.fd, request.data, request.bytes, offset);
  return {request.token, moved >= 0 ? moved : -errno};
}

}  // namespace

ThreadBackend::ThreadBackend(unsigned threads) {
  STRATA_EXPECTS(threads > 0, "a backend without threads would never complete a request");
  try {
    for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (...) {  // no more threads: those that run already must be joined
    stop();
    throw;
  }
}

ThreadBackend::~ThreadBackend() {
  stop();
}

void ThreadBackend::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_ready_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadBackend::submit(const IoRequest& request) {
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
  }
  work_ready_.notify_one();
}

std::size_t ThreadBackend::complete(std::span<IoCompletion> out) {
  std::unique_lock lock(mutex_);
  done_ready_.wait(lock, [this] { return woken_ || !completions_.empty(); });
  woken_ = false;
  std::size_t count = 0;
  while (count < out.size() && !completions_.empty()) {
    out[count++] = completions_.front();
    completions_.pop_front();
  }
  return count;
}

void ThreadBackend::wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  done_ready_.notify_one();
}

void ThreadBackend::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_ready_.wait(lock, [this] { return stopping_ || !requests_.empty(); });
    if (requests_.empty()) return;
    const IoRequest request = requests_.front();
    requests_.pop_front();
    lock.unlock();
    const IoCompletion completion = perform(request);
    lock.lock();
    completions_.push_back(completion);
    done_ready_.notify_one();
  }
}

}  // namespace strata::nvme
