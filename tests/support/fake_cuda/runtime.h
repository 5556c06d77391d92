// The parts of the fake runtime. Order of locks: Streams, Memory, Runtime; none is held while work is waited for.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "support/fake_cuda/fake_cuda.h"

namespace strata::fake_cuda {

// Something that happens once.
class Mark {
 public:
  void set();
  void wait();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;  // guarded by mutex_
};

// A queue with a thread. Its owner closes it before it lets go.
class FakeStream {
 public:
  FakeStream(int device, std::uint64_t seed, bool delays);
  ~FakeStream() { thread_.join(); }

  int device() const { return device_; }
  void push(std::function<void()> work);
  // Returns when all work queued so far is done.
  void drain();
  void close();

 private:
  void run();
  void sleep();

  const int device_;
  const bool delays_;
  std::mt19937_64 random_;  // of thread_
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> work_;  // guarded by mutex_
  bool closed_ = false;                     // guarded by mutex_
  std::thread thread_;
};

struct FakeEvent {
  int device = 0;
  std::shared_ptr<Mark> last;  // null: never recorded
};

// Handles of streams and events.
class Streams {
 public:
  cudaError_t create(cudaStream_t* stream);
  cudaError_t destroy(cudaStream_t stream);
  std::shared_ptr<FakeStream> find(cudaStream_t stream);  // null: no such stream
  cudaError_t create_event(cudaEvent_t* event);
  cudaError_t destroy_event(cudaEvent_t event);
  cudaError_t record(cudaEvent_t event, cudaStream_t stream);
  cudaError_t wait(cudaStream_t stream, cudaEvent_t event);
  cudaError_t synchronize(cudaEvent_t event);
  void count(Alive& alive);
  void reset();

 private:
  std::mutex mutex_;
  std::uint64_t created_ = 0;  // guarded by mutex_, as what follows
  std::map<cudaStream_t, std::shared_ptr<FakeStream>> alive_;
  std::vector<std::shared_ptr<FakeStream>> destroyed_;  // they end what was queued
  std::map<cudaEvent_t, std::unique_ptr<FakeEvent>> events_;
};

// Device memory, or host memory that is pinned.
struct Region {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  int device = -1;               // -1: host memory
  std::vector<std::byte> block;  // device memory with its guards
  bool usable = true;            // its allocation has run on its stream
  bool freed = false;
  std::size_t queued = 0;  // pieces of queued work that use it
};

// One end of a copy. Work that holds it counts as using the region.
struct Range {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<Region> region;  // null: pageable host memory
};

class Memory {
 public:
  cudaError_t allocate(void** memory, std::size_t bytes, bool usable);
  cudaError_t make_usable(const void* memory);
  cudaError_t free(void* memory);
  bool owns(const void* memory);  // as the begin of an allocation
  cudaError_t pin(void* memory, std::size_t bytes);
  cudaError_t unpin(void* memory);
  // Fails when the range is partly outside of the region that it begins in.
  cudaError_t begin_use(const void* memory, std::size_t bytes, Range& range);
  // False, and a violation, when the memory is gone or not there yet.
  bool check_use(const Range& range);
  void end_use(const Range& range);
  std::uint64_t free_bytes(int device);
  cudaError_t create_pool(cudaMemPool_t* pool);
  cudaError_t destroy_pool(cudaMemPool_t pool);
  bool has_pool(cudaMemPool_t pool);
  void count(Alive& alive);
  void reset();

 private:
  std::shared_ptr<Region> find(const void* memory);  // requires mutex_
  void check_idle(const Region& region, const char* what);

  std::mutex mutex_;
  std::map<std::uintptr_t, std::shared_ptr<Region>> regions_;  // guarded by mutex_, by address
  std::map<int, std::uint64_t> used_;                          // guarded by mutex_, by device
  std::set<cudaMemPool_t> pools_;                              // guarded by mutex_
  std::uintptr_t pools_created_ = 0;                           // guarded by mutex_
};

class Runtime final : public Control {
 public:
  static Runtime& get();
  ~Runtime() { forget(); }

  void reset(const Config& config) override;
  void fail_call(const std::string& call, std::uint64_t nth, int error) override;
  void fail_kernel(std::uint64_t nth, int error) override;
  std::uint64_t calls(const std::string& call) override;
  std::vector<std::string> violations() override;
  Alive alive() override;
  std::vector<int> contexts() override;

  Config config();
  void violation(std::string what);
  void make_context(int device);
  // Counts a call; returns what was injected for it or what the device was lost to.
  cudaError_t enter(const char* call);
  cudaError_t lost() const { return static_cast<cudaError_t>(lost_.load()); }
  void kernel_ran();

  Streams streams;
  Memory memory;

 private:
  struct Injection {
    std::uint64_t nth = 0;
    cudaError_t error = cudaSuccess;
  };
  void forget();

  std::mutex mutex_;
  Config config_;  // guarded by mutex_, as what follows
  std::map<std::string, std::uint64_t> calls_;
  std::multimap<std::string, Injection> injections_;  // by call; nth counts from the first call
  std::uint64_t kernels_ = 0;
  Injection failing_kernel_;
  std::vector<std::string> violations_;
  std::set<int> contexts_;
  std::atomic<int> lost_{cudaSuccess};
};

int current_device();
cudaError_t remember(cudaError_t error);  // for cudaGetLastError()

// A runtime function: `body` runs unless something was injected or the device is lost.
template <typename Body>
cudaError_t api(const char* call, Body&& body) {
  const cudaError_t refused = Runtime::get().enter(call);
  return remember(refused != cudaSuccess ? refused : body());
}

// One that waits: it does so in any case, and only then returns the error.
template <typename Body>
cudaError_t waiting_api(const char* call, Body&& body) {
  const cudaError_t refused = Runtime::get().enter(call);
  const cudaError_t error = body();
  if (refused != cudaSuccess) return remember(refused);
  const cudaError_t lost = Runtime::get().lost();
  return remember(lost != cudaSuccess ? lost : error);
}

}  // namespace strata::fake_cuda
