#include "core/event.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/executor.h"

namespace strata {
namespace {

using Callback = std::function<void(std::exception_ptr)>;

// A callback that throws would leave the others uncalled and their waiters asleep for ever, so noexcept ends the
// process.
void call(const Callback& fn, const std::exception_ptr& error) noexcept {
  fn(error);
}

}  // namespace

class EventSource::HostEventState final : public EventState {
 public:
  bool submitted() const override {
    const std::lock_guard lock(mutex_);
    return phase_ != Phase::Pending;
  }

  bool ready() const override {
    const std::lock_guard lock(mutex_);
    return phase_ == Phase::Complete;
  }

  void wait_submitted() const override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return phase_ != Phase::Pending; });
  }

  std::exception_ptr wait() const override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return phase_ == Phase::Complete; });
    return error_;
  }

  void on_complete(Callback fn) override {
    {
      const std::lock_guard lock(mutex_);
      if (phase_ != Phase::Complete) {
        callbacks_.push_back(std::move(fn));
        return;
      }
    }
    // error_ does not change once complete, so it needs no lock.
    call(fn, error_);
  }

  void submit() {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::Pending) phase_ = Phase::Submitted;
    changed_.notify_all();
  }

  // Returns false when already complete. Callbacks run without the lock: they may register further ones, look at this
  // event, or destroy its source.
  bool finish(std::exception_ptr error) {
    std::vector<Callback> callbacks;
    {
      const std::lock_guard lock(mutex_);
      if (phase_ == Phase::Complete) return false;
      phase_ = Phase::Complete;
      error_ = std::move(error);
      callbacks.swap(callbacks_);
      changed_.notify_all();
    }
    for (const Callback& fn : callbacks) call(fn, error_);
    return true;
  }

 private:
  enum class Phase : std::uint8_t { Pending, Submitted, Complete };

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  Phase phase_ = Phase::Pending;     // guarded by mutex_
  std::exception_ptr error_;         // guarded by mutex_ until complete, constant afterwards
  std::vector<Callback> callbacks_;  // guarded by mutex_
};

Event Event::failed(std::exception_ptr error) {
  STRATA_EXPECTS(error != nullptr, "a failed event needs a cause");
  auto state = std::make_shared<EventSource::HostEventState>();
  state->finish(std::move(error));
  return Event(std::move(state));
}

void Event::wait() const {
  if (const std::exception_ptr error = wait_noexcept()) std::rethrow_exception(error);
}

std::exception_ptr Event::wait_noexcept() const {
  return state_ ? state_->wait() : nullptr;
}

void Event::then(Executor& executor, Callback fn) const {
  on_complete([&executor, fn = std::move(fn)](const std::exception_ptr& error) mutable {
    executor.post([fn = std::move(fn), error] { fn(error); });
  });
}

void Event::on_complete(Callback fn) const {
  if (state_) {
    state_->on_complete(std::move(fn));
  } else {
    call(fn, nullptr);
  }
}

EventSource::EventSource() : state_(std::make_shared<HostEventState>()) {}
EventSource::EventSource(EventSource&&) noexcept = default;

EventSource& EventSource::operator=(EventSource&& other) noexcept {
  // The source that `abandoned` becomes cancels what this one still owed.
  EventSource abandoned(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

EventSource::~EventSource() {
  if (!state_ || state_->ready()) return;
  state_->finish(std::make_exception_ptr(Cancelled("the work was abandoned before it completed: its owner shut down")));
}

Event EventSource::event() const {
  STRATA_EXPECTS(state_ != nullptr, "the event source was moved from");
  return Event(state_);
}

void EventSource::submit() {
  STRATA_EXPECTS(state_ != nullptr, "the event source was moved from");
  state_->submit();
}

void EventSource::complete() {
  STRATA_EXPECTS(state_ != nullptr, "the event source was moved from");
  const auto state = state_;  // a callback may destroy this source
  const bool first = state->finish(nullptr);
  STRATA_EXPECTS(first, "an event completes once");
}

void EventSource::fail(std::exception_ptr error) {
  STRATA_EXPECTS(state_ != nullptr, "the event source was moved from");
  STRATA_EXPECTS(error != nullptr, "a failed event needs a cause");
  const auto state = state_;  // a callback may destroy this source
  const bool first = state->finish(std::move(error));
  STRATA_EXPECTS(first, "an event completes once");
}

namespace {

// The conjunction of several events. It asks its parts instead of storing a phase, because an EventState cannot say
// when it becomes submitted, only whether it is.
class AllOf final : public EventState {
 public:
  explicit AllOf(std::vector<Event> parts) : parts_(std::move(parts)) {}

  bool submitted() const override {
    for (const Event& part : parts_) {
      if (!part.submitted()) return false;
    }
    return true;
  }

  bool ready() const override {
    for (const Event& part : parts_) {
      if (!part.ready()) return false;
    }
    return true;
  }

  std::span<const Event> parts() const override { return parts_; }

  void wait_submitted() const override {
    for (const Event& part : parts_) part.wait_submitted();
  }

  std::exception_ptr wait() const override {
    std::exception_ptr first;
    for (const Event& part : parts_) {
      const std::exception_ptr error = part.wait_noexcept();
      if (!first) first = error;
    }
    return first;
  }

  void on_complete(Callback fn) override {
    struct Join {
      explicit Join(std::size_t parts) : remaining(parts), errors(parts) {}
      std::atomic<std::size_t> remaining;
      std::vector<std::exception_ptr> errors;  // element i is written by part i only
      Callback fn;
    };
    auto join = std::make_shared<Join>(parts_.size());
    join->fn = std::move(fn);
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      parts_[i].on_complete([join, i](const std::exception_ptr& error) {
        join->errors[i] = error;
        // acq_rel: the last one to arrive reads the errors that the others wrote.
        if (join->remaining.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
        std::exception_ptr first;
        for (const std::exception_ptr& each : join->errors) {
          if (!first) first = each;
        }
        join->fn(first);
      });
    }
  }

 private:
  const std::vector<Event> parts_;  // never empty
};

}  // namespace

Event when_all(std::span<const Event> events) {
  std::vector<Event> parts;
  for (const Event& event : events) {
    if (event.state()) parts.push_back(event);
  }
  if (parts.empty()) return Event();
  if (parts.size() == 1) return parts.front();
  return Event(std::make_shared<AllOf>(std::move(parts)));
}

}  // namespace strata
