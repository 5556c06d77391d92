#include "core/host_device.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "core/log.h"
#include "core/page_mapping.h"

namespace strata {
namespace {

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
  EventSource source;
};
struct Retire {
  Buffer buffer;
  Event event;
};
using Work = std::variant<Launch, Copy, Wait, Record, Retire>;

// The FIFO between the caller and the stream's thread. Shared, because the completion of a retired buffer's event may
// call poke() when the stream is already gone.
class WorkQueue {
 public:
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

// Sleeps before each piece of work of an adversarial stream, so that code which forgot to wait reads what is not there.
class Lateness {
 public:
  explicit Lateness(std::uint64_t seed) : random_(seed) {}

  void sleep() {
    const bool long_one = std::uniform_int_distribution<int>(0, 63)(random_) == 0;
    const auto microseconds = long_one ? 2000 : std::uniform_int_distribution<int>(0, 200)(random_);
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  }

 private:
  std::mt19937_64 random_;
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

class HostStream final : public Stream {
 public:
  HostStream(std::string name, const HostDeviceOptions& options, std::uint64_t seed)
      : name_(std::move(name)), mode_(options.mode), lateness_(seed), thread_([this] { run(); }) {
    // The kernel keeps 15 characters. A thread without a name works as well, so the result does not matter.
    static_cast<void>(pthread_setname_np(thread_.native_handle(), name_.substr(0, 15).c_str()));
  }

  ~HostStream() override {
    queue_->close();
    thread_.join();
    if (failure_ && !failure_reported_) {
      log::error("stream " + name_ + " failed and no event was recorded afterwards: " + text_of(failure_));
    }
  }

  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  void launch(std::function<void()> fn) override { queue_->push(Launch{std::move(fn)}); }

  void copy(std::byte* destination, const std::byte* source, std::size_t bytes) override {
    if (bytes != 0) queue_->push(Copy{destination, source, bytes});
  }

  void wait(const Event& event) override {
    if (mode_ == HostDeviceOptions::Mode::Adversarial) {
      STRATA_EXPECTS(event.submitted(), "stream " + name_ + " waits for an event that nobody has submitted yet");
    }
    event.wait_submitted();
    queue_->push(Wait{event});
  }

  Event record() override {
    EventSource source;
    source.submit();
    Event event = source.event();
    queue_->push(Record{std::move(source)});
    return event;
  }

  void retire(Buffer buffer, Event event) override { queue_->push(Retire{std::move(buffer), std::move(event)}); }

 private:
  void run() {
    bool ended = false;
    while (!ended) {
      if (std::optional<Work> work = queue_->pop(ended)) {
        if (mode_ == HostDeviceOptions::Mode::Adversarial) lateness_.sleep();
        std::visit([this](auto& item) { perform(item); }, *work);
      }
      std::erase_if(retired_, [](const Retire& item) { return item.event.ready(); });
    }
    // Their events are completed by others, so this ends; the buffers must not outlive the device.
    for (const Retire& item : retired_) item.event.wait_noexcept();
    retired_.clear();
  }

  void perform(Launch& launch) {
    if (failure_) return;
    try {
      launch.fn();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  void perform(Copy& copy) {
    if (!failure_) std::memcpy(copy.destination, copy.source, copy.bytes);
  }

  // A failed stream still waits: an event recorded later promises that what it waited for has let go of its memory.
  void perform(Wait& wait) {
    const std::exception_ptr error = wait.event.wait_noexcept();
    if (!failure_) failure_ = error;
  }

  void perform(Record& record) {
    if (failure_) {
      failure_reported_ = true;
      record.source.fail(failure_);
    } else {
      record.source.complete();
    }
  }

  // Never blocks: the event may belong to another stream, whose work must not hold up this one. An event recorded
  // earlier on this stream is complete by now, so its buffer is free when the next recorded event completes.
  void perform(Retire& retire) {
    if (retire.event.ready()) {
      retire.buffer.reset();
      return;
    }
    retired_.push_back(std::move(retire));
    retired_.back().event.on_complete([queue = queue_](const std::exception_ptr&) { queue->poke(); });
  }

  const std::string name_;
  const HostDeviceOptions::Mode mode_;
  const std::shared_ptr<WorkQueue> queue_ = std::make_shared<WorkQueue>();
  // The rest belongs to thread_; the destructor looks at it after the join.
  Lateness lateness_;
  std::vector<Retire> retired_;  // waiting for their events
  std::exception_ptr failure_;   // the first cause
  bool failure_reported_ = false;
  std::thread thread_;
};

}  // namespace

HostDevice::HostDevice(std::uint64_t budget_bytes, HostDeviceOptions options)
    : budget_("device memory", budget_bytes), options_(options) {}

HostDevice::~HostDevice() {
  if (budget_.used() == 0) return;
  log::error("the host device ends while buffers of " + format_bytes(budget_.used()) + " still exist");
}

std::unique_ptr<Stream> HostDevice::create_stream(std::string name) {
  // relaxed: the number only tells the random sequences of the streams apart.
  const std::uint64_t index = streams_created_.fetch_add(1, std::memory_order_relaxed);
  return std::make_unique<HostStream>(std::move(name), options_, options_.seed * 0x9e3779b97f4a7c15U + index);
}

Buffer HostDevice::allocate(std::size_t bytes, MemoryTag tag) {
  if (bytes == 0) return Buffer();
  const std::size_t mapped = whole_pages(bytes);
  const bool poison = options_.mode == HostDeviceOptions::Mode::Adversarial;
  Reservation reservation = budget_.reserve(mapped, tag);
  std::byte* const memory = map_pages(mapped);
  // 0xff everywhere is a NaN in every floating-point type: reading what was never written, or was freed, shows.
  if (poison) std::memset(memory, 0xff, mapped);
  return Buffer(memory, bytes, MemorySpace::Device, std::move(reservation),
                [mapped, poison](std::byte* data, std::size_t) {
                  if (poison) std::memset(data, 0xff, mapped);
                  unmap_pages(data, mapped);
                });
}

}  // namespace strata
