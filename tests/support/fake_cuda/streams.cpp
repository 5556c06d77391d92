// Streams and events of the fake runtime.
#include <chrono>
#include <utility>

#include "support/fake_cuda/runtime.h"

namespace strata::fake_cuda {

void Mark::set() {
  const std::lock_guard lock(mutex_);
  set_ = true;
  changed_.notify_all();
}

void Mark::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return set_; });
}

FakeStream::FakeStream(int device, std::uint64_t seed, bool delays)
    : device_(device), delays_(delays), random_(seed), thread_([this] { run(); }) {}

void FakeStream::push(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  work_.push_back(std::move(work));
  wake_.notify_one();
}

void FakeStream::drain() {
  const auto done = std::make_shared<Mark>();
  push([done] { done->set(); });
  done->wait();
}

void FakeStream::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  wake_.notify_one();
}

void FakeStream::run() {
  while (true) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return closed_ || !work_.empty(); });
      if (work_.empty()) return;
      work = std::move(work_.front());
      work_.pop_front();
    }
    if (delays_) sleep();
    work();
  }
}

void FakeStream::sleep() {
  const bool long_one = std::uniform_int_distribution<int>(0, 63)(random_) == 0;
  const auto microseconds = long_one ? 2000 : std::uniform_int_distribution<int>(0, 100)(random_);
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

cudaError_t Streams::create(cudaStream_t* stream) {
  const Config config = Runtime::get().config();
  const std::lock_guard lock(mutex_);
  const std::uint64_t seed = config.seed * 0x9e3779b97f4a7c15U + created_++;
  auto made = std::make_shared<FakeStream>(current_device(), seed, config.delays);
  *stream = reinterpret_cast<cudaStream_t>(made.get());
  alive_.emplace(*stream, std::move(made));
  return cudaSuccess;
}

cudaError_t Streams::destroy(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  const auto found = alive_.find(stream);
  if (found == alive_.end()) return cudaErrorInvalidResourceHandle;
  found->second->close();
  destroyed_.push_back(std::move(found->second));
  alive_.erase(found);
  return cudaSuccess;
}

std::shared_ptr<FakeStream> Streams::find(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  const auto found = alive_.find(stream);
  return found == alive_.end() ? nullptr : found->second;
}

cudaError_t Streams::create_event(cudaEvent_t* event) {
  const std::lock_guard lock(mutex_);
  auto made = std::make_unique<FakeEvent>();
  made->device = current_device();
  *event = reinterpret_cast<cudaEvent_t>(made.get());
  events_.emplace(*event, std::move(made));
  return cudaSuccess;
}

cudaError_t Streams::destroy_event(cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  return events_.erase(event) == 1 ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

cudaError_t Streams::record(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(event);
  const auto on = alive_.find(stream);
  if (found == events_.end() || on == alive_.end()) return cudaErrorInvalidResourceHandle;
  if (found->second->device != on->second->device()) return cudaErrorInvalidResourceHandle;
  const auto mark = std::make_shared<Mark>();
  found->second->last = mark;
  on->second->push([mark] { mark->set(); });
  return cudaSuccess;
}

// Waits for the recording that is the last one now, whatever the event is recorded for later.
cudaError_t Streams::wait(cudaStream_t stream, cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(event);
  const auto on = alive_.find(stream);
  if (found == events_.end() || on == alive_.end()) return cudaErrorInvalidResourceHandle;
  if (const auto mark = found->second->last) on->second->push([mark] { mark->wait(); });
  return cudaSuccess;
}

cudaError_t Streams::synchronize(cudaEvent_t event) {
  std::shared_ptr<Mark> mark;
  {
    const std::lock_guard lock(mutex_);
    const auto found = events_.find(event);
    if (found == events_.end()) return cudaErrorInvalidResourceHandle;
    mark = found->second->last;
  }
  if (mark) mark->wait();
  return cudaSuccess;
}

void Streams::count(Alive& alive) {
  const std::lock_guard lock(mutex_);
  alive.streams = alive_.size();
  alive.events = events_.size();
}

void Streams::reset() {
  std::map<cudaStream_t, std::shared_ptr<FakeStream>> streams;
  std::vector<std::shared_ptr<FakeStream>> destroyed;
  {
    const std::lock_guard lock(mutex_);
    streams.swap(alive_);
    destroyed.swap(destroyed_);
  }
  for (const auto& [handle, stream] : streams) stream->close();
  streams.clear();  // joins
  destroyed.clear();
  const std::lock_guard lock(mutex_);
  events_.clear();
  created_ = 0;
}

}  // namespace strata::fake_cuda

using strata::fake_cuda::api;
using strata::fake_cuda::Runtime;
using strata::fake_cuda::waiting_api;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int /*flags*/) {
  return api("cudaStreamCreateWithFlags", [&] { return Runtime::get().streams.create(stream); });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return api("cudaStreamDestroy", [&] { return Runtime::get().streams.destroy(stream); });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return waiting_api("cudaStreamSynchronize", [&] {
    const auto found = Runtime::get().streams.find(stream);
    if (!found) return cudaErrorInvalidResourceHandle;
    found->drain();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int /*flags*/) {
  return api("cudaStreamWaitEvent", [&] { return Runtime::get().streams.wait(stream, event); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int /*flags*/) {
  return api("cudaEventCreateWithFlags", [&] { return Runtime::get().streams.create_event(event); });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return api("cudaEventDestroy", [&] { return Runtime::get().streams.destroy_event(event); });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return api("cudaEventRecord", [&] { return Runtime::get().streams.record(event, stream); });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return waiting_api("cudaEventSynchronize", [&] { return Runtime::get().streams.synchronize(event); });
}

int strata_fake_launch(void* stream, void (*run)(void*), void* argument) {
  return api("strata_fake_launch", [&] {
    const auto found = Runtime::get().streams.find(static_cast<cudaStream_t>(stream));
    if (!found) return cudaErrorInvalidResourceHandle;
    found->push([run, argument] {
      run(argument);
      Runtime::get().kernel_ran();
    });
    return cudaSuccess;
  });
}
