// Event: the only asynchronous result in the project.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <span>

namespace strata {

class Event;
class Executor;

// What an Event refers to. Host completions use HostEventState (event.cpp); a device backend derives its own.
// Thread-safety: all members from any thread.
class EventState {
 public:
  virtual ~EventState() = default;
  // True once the work that completes this event has been handed to its queue. Waiting on the device side for an event
  // that was never submitted is a silent no-op in CUDA, so streams check this phase first.
  virtual bool submitted() const = 0;
  // True once complete or failed. Never blocks.
  virtual bool ready() const = 0;
  virtual void wait_submitted() const = 0;
  // Blocks until complete; returns the failure, or null.
  virtual std::exception_ptr wait() const = 0;
  // Runs `fn` with the failure (or null) once complete: on the completing thread, or at once when already complete.
  // `fn` must be short, must not block and must not throw.
  virtual void on_complete(std::function<void(std::exception_ptr)> fn) = 0;
  // The events that this one is made of, where when_all() made it: a stream waits for each in its own way.
  virtual std::span<const Event> parts() const { return {}; }
};

// A copyable handle to one completion with two phases: submitted, then complete (or failed).
// A default-constructed Event is complete. A failed Event fails whatever follows it.
class Event {
 public:
  Event() = default;
  explicit Event(std::shared_ptr<EventState> state) : state_(std::move(state)) {}
  static Event failed(std::exception_ptr error);

  bool submitted() const { return !state_ || state_->submitted(); }
  bool ready() const { return !state_ || state_->ready(); }
  void wait_submitted() const {
    if (state_) state_->wait_submitted();
  }
  // Blocks until complete. Throws: the failure.
  void wait() const;
  // As wait(), but returns the failure (null when the work succeeded).
  std::exception_ptr wait_noexcept() const;
  // Posts `fn` to `executor` once complete. `fn` receives the failure or null.
  void then(Executor& executor, std::function<void(std::exception_ptr)> fn) const;
  // Runs `fn` on the completing thread. For bookkeeping that is short and cannot block or throw.
  void on_complete(std::function<void(std::exception_ptr)> fn) const;

  const std::shared_ptr<EventState>& state() const { return state_; }

 private:
  std::shared_ptr<EventState> state_;
};

// The producing end of a host completion. Move-only; exactly one of complete() and fail() is called. A source destroyed
// without either fails its event with Cancelled, so that nobody waits for ever.
class EventSource {
 public:
  EventSource();
  EventSource(EventSource&&) noexcept;
  EventSource& operator=(EventSource&&) noexcept;
  EventSource(const EventSource&) = delete;
  EventSource& operator=(const EventSource&) = delete;
  ~EventSource();

  Event event() const;
  void submit();  // first phase; implied by complete() and fail()
  void complete();
  void fail(std::exception_ptr error);

 private:
  class HostEventState;
  friend class Event;
  std::shared_ptr<HostEventState> state_;
};

// Completes when all have; fails with the first failure in the order of the span.
Event when_all(std::span<const Event> events);

}  // namespace strata
