#include "core/queued_stream.h"

#include <pthread.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>

#include "core/log.h"

namespace strata {
namespace {

class HostRecording final : public Recording {
 public:
  HostRecording() { source_.submit(); }
  Event event() const override { return source_.event(); }
  void perform(const std::exception_ptr& failure) override {
    if (failure) {
      source_.fail(failure);
    } else {
      source_.complete();
    }
  }

 private:
  EventSource source_;
};

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace

void StreamWork::copy(std::byte* destination, const std::byte* source, std::size_t bytes) {
  std::memcpy(destination, source, bytes);
}

std::unique_ptr<Recording> StreamWork::begin_record() {
  return std::make_unique<HostRecording>();
}

// The FIFO between the caller and the stream's thread. Shared, because the completion of a retired buffer's event may
// call poke() when the stream is already gone.
class QueuedStream::Queue {
 public:
  using Work = std::variant<Launch, Copy, Wait, Record, Retire>;

  void push(Work work) {
    {
      const std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
    }
    wake_.notify_one();
  }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    wake_.notify_one();
  }

  // Makes a pop() return so that the thread looks after its retired buffers.
  void poke() {
    {
      const std::lock_guard lock(mutex_);
      poked_ = true;
    }
    wake_.notify_one();
  }

  // Blocks for work, a poke or the end; `ended` is set when the queue is closed and empty.
  std::optional<Work> pop(bool& ended) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return closed_ || poked_ || !work_.empty(); });
    poked_ = false;
    ended = closed_ && work_.empty();
    if (work_.empty()) return std::nullopt;
    std::optional<Work> work(std::move(work_.front()));
    work_.pop_front();
    return work;
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Work> work_;  // guarded by mutex_
  bool closed_ = false;    // guarded by mutex_
  bool poked_ = false;     // guarded by mutex_
};

QueuedStream::QueuedStream(std::string name, std::unique_ptr<StreamWork> work)
    : name_(std::move(name)), work_(std::move(work)), queue_(std::make_shared<Queue>()), thread_([this] { run(); }) {
  // The kernel keeps 15 characters. A thread without a name works as well, so the result does not matter.
  static_cast<void>(pthread_setname_np(thread_.native_handle(), name_.substr(0, 15).c_str()));
}

QueuedStream::~QueuedStream() {
  queue_->close();
  thread_.join();
  if (failure_ && !failure_reported_) {
    log::error("stream " + name_ + " failed and no event was recorded afterwards: " + text_of(failure_));
  }
}

void QueuedStream::launch(std::function<void()> fn) {
  queue_->push(Launch{std::move(fn)});
}

void QueuedStream::copy(std::byte* destination, const std::byte* source, std::size_t bytes) {
  if (bytes != 0) queue_->push(Copy{destination, source, bytes});
}

void QueuedStream::wait(const Event& event) {
  work_->check_wait(event);
  event.wait_submitted();
  queue_->push(Wait{event});
}

Event QueuedStream::record() {
  std::unique_ptr<Recording> recording = work_->begin_record();
  Event event = recording->event();
  queue_->push(Record{std::move(recording)});
  return event;
}

void QueuedStream::retire(Buffer buffer, Event event) {
  queue_->push(Retire{std::move(buffer), std::move(event)});
}

void QueuedStream::run() {
  guarded([this] { work_->begin_thread(); });
  bool ended = false;
  while (!ended) {
    if (std::optional<Queue::Work> work = queue_->pop(ended)) {
      work_->before_each();
      std::visit([this](auto& item) { perform(item); }, *work);
    }
    std::erase_if(retired_, [](const Retire& item) { return item.event.ready(); });
  }
  // Their events are completed by others, so this ends; the buffers must not outlive the device.
  for (const Retire& item : retired_) item.event.wait_noexcept();
  retired_.clear();
}

// Keeps the first exception as the stream's failure.
template <typename Function>
void QueuedStream::guarded(Function&& function) {
  try {
    function();
  } catch (...) {
    if (!failure_) failure_ = std::current_exception();
  }
}

void QueuedStream::perform(Launch& launch) {
  if (!failure_) guarded([&] { work_->launch(launch.fn); });
}

void QueuedStream::perform(Copy& copy) {
  if (!failure_) guarded([&] { work_->copy(copy.destination, copy.source, copy.bytes); });
}

void QueuedStream::perform(Wait& wait) {
  guarded([&] {
    const std::exception_ptr error = work_->wait(wait.event);
    if (!failure_) failure_ = error;
  });
}

void QueuedStream::perform(Record& record) {
  guarded([&] { record.recording->perform(failure_); });
  failure_reported_ = failure_ != nullptr;
}

// Never blocks: the event may belong to another stream, whose work must not hold up this one. An event recorded
// earlier on this stream is complete by now, so its buffer is free when the next recorded event completes.
void QueuedStream::perform(Retire& retire) {
  if (Stream* const later = work_->completion()) {
    later->retire(std::move(retire.buffer), std::move(retire.event));
    return;
  }
  if (retire.event.ready()) {
    retire.buffer.reset();
    return;
  }
  retired_.push_back(std::move(retire));
  retired_.back().event.on_complete([queue = queue_](const std::exception_ptr&) { queue->poke(); });
}

}  // namespace strata
