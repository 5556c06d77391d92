#include "core/executor.h"

#include <pthread.h>

#include <memory>
#include <utility>

#include "core/error.h"
#include "core/event.h"

namespace strata {

ThreadExecutor::ThreadExecutor(std::string name) : thread_([this] { run(); }) {
  // The kernel keeps 15 characters. A thread without a name works as well, so the result does not matter.
  static_cast<void>(pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str()));
}

ThreadExecutor::~ThreadExecutor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void ThreadExecutor::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void ThreadExecutor::drain() {
  STRATA_EXPECTS(std::this_thread::get_id() != thread_.get_id(), "an executor cannot wait for itself");
  const auto reached = std::make_shared<EventSource>();
  const Event event = reached->event();
  post([reached] { reached->complete(); });
  event.wait();
}

void ThreadExecutor::run() {
  while (true) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace strata
