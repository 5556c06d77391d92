// Events of CUDA streams: the runtime's own, pooled, and the strata::Event that stands for one recording of it.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/event.h"
#include "cuda/errors.h"

namespace strata::cuda {

class EventPool;

// A cudaEvent_t on loan from a pool, which it must not outlive. Without timing, and whoever waits for it sleeps.
class CudaEvent {
 public:
  CudaEvent(EventPool& pool, cudaEvent_t event) : pool_(&pool), event_(event) {}
  CudaEvent(CudaEvent&& other) noexcept : pool_(other.pool_), event_(std::exchange(other.event_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&&) = delete;
  ~CudaEvent();

  cudaEvent_t get() const { return event_; }

 private:
  EventPool* pool_;
  cudaEvent_t event_;
};

// Thread-safe. A stream needs as many events as it has recordings in flight; what came back is used first.
class EventPool {
 public:
  explicit EventPool(DeviceContext& context) : context_(context) {}
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  // Requires: the context's device is the calling thread's. Throws: DeviceError.
  CudaEvent take();

 private:
  friend class CudaEvent;
  void give_back(cudaEvent_t event) noexcept;

  DeviceContext& context_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> idle_;  // guarded by mutex_
};

// What Stream::record() of a CUDA stream returns. Submitted from the start; then recorded in CUDA by the stream's
// thread, which is what other streams of the device wait for; then complete. Thread-safe.
class CudaEventState final : public EventState {
 public:
  explicit CudaEventState(const DeviceContext& context);

  bool submitted() const override { return true; }
  bool ready() const override { return event_.ready(); }
  void wait_submitted() const override {}
  std::exception_ptr wait() const override { return event_.wait_noexcept(); }
  void on_complete(std::function<void(std::exception_ptr)> fn) override { event_.on_complete(std::move(fn)); }

  bool is_of(const DeviceContext& context) const { return &context == &context_; }

  struct Recorded {
    std::shared_ptr<const CudaEvent> marker;  // null: complete, or CUDA refused to record
    std::exception_ptr failure;               // of the stream at that moment
  };
  // Once, by the stream's thread.
  void recorded(Recorded recorded);
  // Blocks until then.
  Recorded wait_recorded() const;
  // Once, after recorded().
  void complete(const std::exception_ptr& failure);

 private:
  const DeviceContext& context_;  // compared, never looked into: an event may outlive it
  EventSource source_;
  const Event event_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool is_recorded_ = false;  // guarded by mutex_
  Recorded recorded_;         // guarded by mutex_
};

}  // namespace strata::cuda
