#include "cuda/cuda_stream.h"

#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "core/log.h"
#include "core/queued_stream.h"
#include "cuda/current_stream.h"

namespace strata::cuda {
namespace {

// What shows only after the work was handed over; set by the completing thread, read by the submitting one.
class LateFailure {
 public:
  void set(const std::exception_ptr& failure) {
    const std::lock_guard lock(mutex_);
    if (!first_) first_ = failure;
  }
  std::exception_ptr get() const {
    const std::lock_guard lock(mutex_);
    return first_;
  }

 private:
  mutable std::mutex mutex_;
  std::exception_ptr first_;  // guarded by mutex_
};

class CudaWork final : public StreamWork {
 public:
  CudaWork(const std::string& name, const StreamHost& host)
      : name_(name),
        host_(host),
        completer_(std::make_unique<QueuedStream>(name + " done", std::make_unique<StreamWork>())) {
    // What runs on this thread never throws: a failed stream would skip completions, and their waiters would hang.
    completer_->launch([this] { context().bind_thread_noexcept(); });
    context().bind_thread();
    context().check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }

  ~CudaWork() override {
    completer_.reset();  // completes what was recorded
    context().bind_thread_noexcept();
    context().log(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    // A handle that is still referred to must not be given to another stream.
    if (torch_has_let_go()) context().log(cudaStreamDestroy(stream_), "cudaStreamDestroy");
  }

  CudaWork(const CudaWork&) = delete;
  CudaWork& operator=(const CudaWork&) = delete;

  void begin_thread() override {
    context().bind_thread();
    if (host_.on_stream_thread) host_.on_stream_thread(stream_);
  }

  void launch(const std::function<void()>& fn) override {
    throw_if_failed();
    const CurrentStream current(stream_);
    fn();
  }

  void copy(std::byte* destination, const std::byte* source, std::size_t bytes) override {
    throw_if_failed();
    context().check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
  }

  std::exception_ptr wait(const Event& event) override;
  std::unique_ptr<Recording> begin_record() override;
  Stream* completion() override { return completer_.get(); }

  // The stream's thread: records `state`, whose event then completes after all work so far.
  void record(const std::shared_ptr<CudaEventState>& state, std::exception_ptr failure);

 private:
  // One recording on its way from the stream's thread to the completing one.
  struct Completion {
    std::shared_ptr<CudaEventState> state;
    std::shared_ptr<const CudaEvent> marker;
    std::exception_ptr failure;  // known when it was recorded
    std::vector<Event> awaited;  // since the recording before it; their failures are this one's
  };

  DeviceContext& context() const { return host_.context; }
  void throw_if_failed() const {
    context().throw_if_lost();
    if (const std::exception_ptr failure = late_failure_.get()) std::rethrow_exception(failure);
  }
  bool torch_has_let_go() noexcept;
  std::exception_ptr synchronize(const CudaEvent* marker);
  void finish(const Completion& completion) noexcept;

  const std::string name_;
  const StreamHost& host_;
  cudaStream_t stream_ = nullptr;
  std::vector<Event> awaited_;  // of the stream's thread; see Completion
  LateFailure late_failure_;
  std::unique_ptr<QueuedStream> completer_;
};

class CudaRecording final : public Recording {
 public:
  CudaRecording(CudaWork& work, const DeviceContext& context)
      : work_(work), state_(std::make_shared<CudaEventState>(context)) {}
  Event event() const override { return Event(state_); }
  void perform(const std::exception_ptr& failure) override { work_.record(state_, failure); }

 private:
  CudaWork& work_;
  const std::shared_ptr<CudaEventState> state_;
};

std::unique_ptr<Recording> CudaWork::begin_record() {
  return std::make_unique<CudaRecording>(*this, context());
}

// CUDA takes a wait for an event that was never recorded for no wait at all, so this thread waits for the recording;
// the device waits for the rest. It cannot wait for events of the host: those hold up this thread, and thereby later
// work.
std::exception_ptr CudaWork::wait(const Event& event) {
  if (event.state() && !event.state()->parts().empty()) {
    std::exception_ptr first;
    for (const Event& part : event.state()->parts()) {
      std::exception_ptr failure;
      try {
        failure = wait(part);
      } catch (...) {  // a failed stream goes on waiting for others
        failure = std::current_exception();
      }
      if (!first) first = failure;
    }
    return first;
  }
  const auto* const state = dynamic_cast<const CudaEventState*>(event.state().get());
  if (state == nullptr || !state->is_of(context())) return event.wait_noexcept();
  const CudaEventState::Recorded recorded = state->wait_recorded();
  if (!recorded.marker) return event.wait_noexcept();
  const cudaError_t error = cudaStreamWaitEvent(stream_, recorded.marker->get(), 0);
  if (error != cudaSuccess) event.wait_noexcept();  // events of this stream promise that it has let go of its memory
  context().check(error, "cudaStreamWaitEvent");
  if (!recorded.failure) awaited_.push_back(event);  // it may still fail
  return recorded.failure;
}

void CudaWork::record(const std::shared_ptr<CudaEventState>& state, std::exception_ptr failure) {
  std::shared_ptr<const CudaEvent> marker;
  std::exception_ptr refused;
  try {
    auto event = std::make_shared<const CudaEvent>(host_.events.take());
    context().check(cudaEventRecord(event->get(), stream_), "cudaEventRecord");
    marker = std::move(event);
  } catch (...) {
    refused = std::current_exception();
  }
  if (!failure) failure = refused;
  state->recorded({marker, failure});
  Completion completion{state, std::move(marker), std::move(failure), std::exchange(awaited_, {})};
  completer_->launch([this, completion = std::move(completion)] { finish(completion); });
  if (refused) std::rethrow_exception(refused);
}

bool CudaWork::torch_has_let_go() noexcept {
  if (!host_.before_stream_ends) return true;
  try {
    context().throw_if_lost();
  } catch (...) {
    return true;  // whatever is kept is of no use any more
  }
  std::string why = "it is still referred to";
  try {
    if (host_.before_stream_ends(stream_)) return true;
  } catch (const std::exception& error) {
    why = error.what();
  } catch (...) {
  }
  log::warning("the stream " + name_ + " of device " + std::to_string(context().index()) +
               " is left to the process: " + why);
  return false;
}

// Blocks until all work before the recording is done.
std::exception_ptr CudaWork::synchronize(const CudaEvent* marker) {
  try {
    if (marker != nullptr) {
      context().check(cudaEventSynchronize(marker->get()), "cudaEventSynchronize");
    } else {
      context().check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    }
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

// A failed stream waits for everything as well: whoever sees the failure frees memory that earlier work may be using.
void CudaWork::finish(const Completion& completion) noexcept {
  const std::exception_ptr here = synchronize(completion.marker.get());
  std::exception_ptr late;
  for (const Event& event : completion.awaited) {
    const std::exception_ptr there = event.wait_noexcept();
    if (!late) late = there;
  }
  if (!late) late = here;
  // In the order of the stream: what showed at earlier recordings, what was known at this one, what shows now.
  const std::exception_ptr earlier = late_failure_.get();
  if (late) late_failure_.set(late);
  const std::exception_ptr now = completion.failure ? completion.failure : late;
  completion.state->complete(earlier ? earlier : now);
}

}  // namespace

std::unique_ptr<Stream> make_cuda_stream(const std::string& name, const StreamHost& host) {
  return std::make_unique<QueuedStream>(name, std::make_unique<CudaWork>(name, host));
}

}  // namespace strata::cuda
