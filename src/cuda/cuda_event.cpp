#include "cuda/cuda_event.h"

#include <utility>

namespace strata::cuda {

CudaEvent::~CudaEvent() {
  if (event_ != nullptr) pool_->give_back(event_);
}

EventPool::~EventPool() {
  context_.bind_thread_noexcept();
  for (cudaEvent_t event : idle_) context_.log(cudaEventDestroy(event), "cudaEventDestroy");
}

CudaEvent EventPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      cudaEvent_t event = idle_.back();
      idle_.pop_back();
      return {*this, event};
    }
  }
  cudaEvent_t event = nullptr;
  context_.check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
                 "cudaEventCreateWithFlags");
  return {*this, event};
}

void EventPool::give_back(cudaEvent_t event) noexcept {
  const std::lock_guard lock(mutex_);
  idle_.push_back(event);
}

CudaEventState::CudaEventState(const DeviceContext& context) : context_(context), event_(source_.event()) {
  source_.submit();
}

void CudaEventState::recorded(Recorded recorded) {
  const std::lock_guard lock(mutex_);
  recorded_ = std::move(recorded);
  is_recorded_ = true;
  changed_.notify_all();
}

CudaEventState::Recorded CudaEventState::wait_recorded() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return is_recorded_; });
  return recorded_;
}

void CudaEventState::complete(const std::exception_ptr& failure) {
  Recorded last;  // the marker goes back to the pool without the lock
  {
    const std::lock_guard lock(mutex_);
    std::swap(last, recorded_);
  }
  last.marker.reset();
  if (failure) {
    source_.fail(failure);
  } else {
    source_.complete();
  }
}

}  // namespace strata::cuda
