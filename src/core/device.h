// Ports: Device and Stream. The host device (host_device.h) and CUDA (src/cuda) implement them.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/buffer.h"
#include "core/event.h"

namespace strata {

// An ordered queue of work on a device. Work of one stream runs in the order of the calls; streams are ordered among
// each other only through events. Calls come from one thread at a time. After work fails, later work of the stream is
// skipped and its recorded events fail with the first cause.
class Stream {
 public:
  virtual ~Stream() = default;

  // Runs `fn` on the stream's thread, in order. CUDA: with this stream current, so that the kernels which `fn` launches
  // are work of this stream; the event after them completes when they have.
  virtual void launch(std::function<void()> fn) = 0;
  // Copies between any two of {device, pinned host}. Both ranges must stay valid until an event recorded afterwards
  // completes.
  virtual void copy(std::byte* destination, const std::byte* source, std::size_t bytes) = 0;
  // Later work of this stream waits for `event`. Blocks the caller until the event is submitted.
  virtual void wait(const Event& event) = 0;
  // Completes when all work queued so far has. The returned event is submitted.
  virtual Event record() = 0;
  // Frees `buffer` once `event` completes; does not hold up the stream. When `event` was recorded earlier on this
  // stream, the buffer is free by the time an event completes that was recorded after this call.
  virtual void retire(Buffer buffer, Event event) = 0;
};

// One accelerator, or the host acting as one.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  virtual std::unique_ptr<Stream> create_stream(std::string name) = 0;
  // Device memory for `bytes` bytes out of budget(). Throws: OutOfBudget, DeviceError.
  virtual Buffer allocate(std::size_t bytes, MemoryTag tag) = 0;
  virtual Budget& budget() = 0;
};

}  // namespace strata
