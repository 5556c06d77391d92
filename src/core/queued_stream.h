// QueuedStream: a Stream whose work waits in a FIFO for a thread of its own. What is done with it is the device's.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/device.h"

namespace strata {

// One record(): begun by the caller of the stream, performed on the stream's thread in its order.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual Event event() const = 0;  // submitted
  // All work before it has been handed to the device or, with a `failure`, skipped since then. Sees to it that the
  // event ends, failed with `failure` if there is one. An exception fails the stream as well.
  virtual void perform(const std::exception_ptr& failure) = 0;
};

// What a device does with the work of one stream; as it stands, what the host does. The thread of the stream makes all
// calls but those marked. An exception fails the stream, and then launch() and copy() are no longer called.
class StreamWork {
 public:
  virtual ~StreamWork() = default;
  virtual void begin_thread() {}  // once, before all work
  virtual void before_each() {}   // piece of work
  virtual void launch(const std::function<void()>& fn) { fn(); }
  virtual void copy(std::byte* destination, const std::byte* source, std::size_t bytes);
  // The caller's thread: refuses an event by an exception, which does not fail the stream.
  virtual void check_wait(const Event& /*event*/) {}
  // Lets later work wait for `event`; returns its failure as far as it is known. Also called after a failure: an event
  // recorded later promises that what the stream waited for has let go of its memory.
  virtual std::exception_ptr wait(const Event& event) { return event.wait_noexcept(); }
  // The caller's thread.
  virtual std::unique_ptr<Recording> begin_record();
  // The stream on which this one's events complete, one after the other, where that is not this one itself: buffers
  // are retired there.
  virtual Stream* completion() { return nullptr; }
};

// Thread-safety: as Stream says. Destruction performs what is queued and waits for the events of retired buffers.
class QueuedStream final : public Stream {
 public:
  QueuedStream(std::string name, std::unique_ptr<StreamWork> work);
  ~QueuedStream() override;
  QueuedStream(const QueuedStream&) = delete;
  QueuedStream& operator=(const QueuedStream&) = delete;

  void launch(std::function<void()> fn) override;
  void copy(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void wait(const Event& event) override;
  Event record() override;
  void retire(Buffer buffer, Event event) override;

 private:
  struct Launch {
    std::function<void()> fn;
  };
  struct Copy {
    std::byte* destination;
    const std::byte* source;
    std::size_t bytes;
  };
  struct Wait {
    Event event;
  };
  struct Record {
    std::unique_ptr<Recording> recording;
  };
  struct Retire {
    Buffer buffer;
    Event event;
  };
  class Queue;

  void run();
  void perform(Launch& launch);
  void perform(Copy& copy);
  void perform(Wait& wait);
  void perform(Record& record);
  void perform(Retire& retire);
  template <typename Function>
  void guarded(Function&& function);

  const std::string name_;
  const std::unique_ptr<StreamWork> work_;
  const std::shared_ptr<Queue> queue_;
  // The rest belongs to thread_; the destructor looks at it after the join.
  std::vector<Retire> retired_;  // waiting for their events
  std::exception_ptr failure_;   // the first cause
  bool failure_reported_ = false;
  std::thread thread_;
};

}  // namespace strata
