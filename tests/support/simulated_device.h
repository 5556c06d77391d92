// SimulatedDevice: a device in host memory whose streams really work, and whose time is a number.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/host_device.h"
#include "core/queued_stream.h"
#include "support/virtual_time.h"

namespace strata::test {

// A copy takes the latency and its bytes at the rate of its direction.
struct SimulatedRates {
  double latency_seconds = 0;
  // Bytes per second.
  double to_device = std::numeric_limits<double>::infinity();
  double to_host = std::numeric_limits<double>::infinity();
  double within = std::numeric_limits<double>::infinity();  // from device memory to device memory
};

// Its streams are QueuedStreams, so everything is really done, as late as threads are. Beside that:
// - a copy occupies its direction, for which all streams take turns: who is ready first, then who was made first;
//   device memory is what allocate() gave, and a copy from host memory to host memory takes no time;
// - what a launch runs takes what it says by spend(), by itself no time; streams compute beside each other;
// - work comes after what its stream waited for, and after what the thread that queued it had waited for by then. So a
//   host thread that blocks for an event queues later;
// - an event that the device did not make has the time 0, whoever completes it: times do not pass through EventSources.
//   Nor does ready() count as waiting.
// Thread-safety and ownership: as HostDevice.
class SimulatedDevice final : public Device {
 public:
  explicit SimulatedDevice(std::uint64_t budget_bytes, const SimulatedRates& rates = {})
      : rates_(rates), memory_(budget_bytes) {}

  // The caller, which is what a launch runs or a host thread, takes that long.
  void spend(double seconds) { time_->spend(seconds); }
  // When all that has been done so far ended, where the device was made at 0. What is still queued does not count.
  double seconds() const { return time_->end(); }

  std::string_view name() const override { return "simulated"; }
  std::unique_ptr<Stream> create_stream(std::string name) override {
    return std::make_unique<TimedStream>(std::move(name), *this, ++streams_);
  }
  Buffer allocate(std::size_t bytes, MemoryTag tag) override {
    auto memory = std::make_shared<Buffer>(memory_.allocate(bytes, tag));
    std::byte* const data = memory->data();
    if (data == nullptr) return Buffer();
    const std::lock_guard lock(mutex_);
    ends_.emplace(data, data + bytes);
    return Buffer(data, bytes, MemorySpace::Device, Reservation(), [this, memory](std::byte* begin, std::size_t) {
      {
        const std::lock_guard freeing(mutex_);
        ends_.erase(begin);
      }
      memory->reset();
    });
  }
  Budget& budget() override { return memory_.budget(); }

 private:
  enum Link : std::size_t { ToDevice, ToHost, Within, kLinks };

  // Whoever waits for it comes after what was recorded.
  class TimedEvent final : public EventState {
   public:
    explicit TimedEvent(std::shared_ptr<VirtualTime> time) : time_(std::move(time)) { source_.submit(); }
    bool submitted() const override { return event_.submitted(); }
    bool ready() const override { return event_.ready(); }
    void wait_submitted() const override { event_.wait_submitted(); }
    std::exception_ptr wait() const override {
      std::exception_ptr error = event_.wait_noexcept();
      time_->follow(recorded_);
      return error;
    }
    void on_complete(std::function<void(std::exception_ptr)> fn) override { event_.on_complete(std::move(fn)); }

    void end(const std::exception_ptr& failure) {
      recorded_ = time_->last();
      failure ? source_.fail(failure) : source_.complete();
    }

   private:
    const std::shared_ptr<VirtualTime> time_;
    EventSource source_;
    const Event event_ = source_.event();
    VirtualTime::Step recorded_ = VirtualTime::kStart;  // written before the event completes, read afterwards
  };

  class TimedRecording final : public Recording {
   public:
    explicit TimedRecording(std::shared_ptr<VirtualTime> time)
        : state_(std::make_shared<TimedEvent>(std::move(time))) {}
    Event event() const override { return Event(state_); }
    void perform(const std::exception_ptr& failure) override { state_->end(failure); }

   private:
    const std::shared_ptr<TimedEvent> state_;
  };

  class TimedWork final : public StreamWork {
   public:
    TimedWork(SimulatedDevice& device, std::size_t order) : device_(device), order_(order) {}
    void begin_thread() override { device_.time_->set_order(order_); }
    void copy(std::byte* destination, const std::byte* source, std::size_t bytes) override {
      StreamWork::copy(destination, source, bytes);
      device_.spend_on_copy(destination, source, bytes);
    }
    std::unique_ptr<Recording> begin_record() override { return std::make_unique<TimedRecording>(device_.time_); }

   private:
    SimulatedDevice& device_;
    const std::size_t order_;
  };

  // What is queued comes after what the thread that queues it has waited for.
  class TimedStream final : public Stream {
   public:
    TimedStream(std::string name, SimulatedDevice& device, std::size_t order)
        : time_(*device.time_), stream_(std::move(name), std::make_unique<TimedWork>(device, order)) {}

    void launch(std::function<void()> fn) override { after_caller().launch(std::move(fn)); }
    void copy(std::byte* destination, const std::byte* source, std::size_t bytes) override {
      after_caller().copy(destination, source, bytes);
    }
    void wait(const Event& event) override { after_caller().wait(event); }
    Event record() override { return after_caller().record(); }
    void retire(Buffer buffer, Event event) override { stream_.retire(std::move(buffer), std::move(event)); }

   private:
    Stream& after_caller() {
      const VirtualTime::Step caller = time_.last();
      if (caller != std::exchange(caller_, caller)) {
        stream_.launch([&time = time_, caller] { time.follow(caller); });
      }
      return stream_;
    }

    VirtualTime& time_;
    VirtualTime::Step caller_ = VirtualTime::kStart;  // when it queued last
    QueuedStream stream_;
  };

  bool on_device(const std::byte* address) const {
    const std::lock_guard lock(mutex_);
    const auto after = ends_.upper_bound(address);
    return after != ends_.begin() && address < std::prev(after)->second;
  }

  void spend_on_copy(const std::byte* destination, const std::byte* source, std::size_t bytes) {
    const bool from_device = on_device(source);
    const bool to_device = on_device(destination);
    if (!from_device && !to_device) return;
    const Link link = !to_device ? ToHost : from_device ? Within : ToDevice;
    const double rate = link == ToHost ? rates_.to_host : link == Within ? rates_.within : rates_.to_device;
    time_->spend(rates_.latency_seconds + static_cast<double>(bytes) / rate, link);
  }

  const SimulatedRates rates_;
  const std::shared_ptr<VirtualTime> time_ = std::make_shared<VirtualTime>(kLinks);  // events may live longer
  HostDevice memory_;
  std::atomic<std::size_t> streams_{0};
  mutable std::mutex mutex_;
  std::map<const std::byte*, const std::byte*> ends_;  // of buffers, by their begin; guarded by mutex_
};

}  // namespace strata::test
