// A CUDA runtime on host memory and host threads, for tests: the functions of the runtime that src/cuda calls, under
// their own names, with the semantics that a GPU gives them. Streams run late, by seeded random delays; memory is
// poisoned and guarded; what would be silent corruption on a GPU is a violation that the tests ask for.
// It says nothing of speed, and nothing about what a driver really does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace strata::fake_cuda {

struct Config {
  std::uint64_t seed = 0;
  bool delays = true;
  int devices = 1;
  std::uint64_t memory_bytes = std::uint64_t{8} << 30;  // of each device
  bool pools = true;                                    // cudaDevAttrMemoryPoolsSupported
  bool unaligned = false;  // memory begins 256 bytes behind a page, which CUDA's promise allows
  int major = 8;
  int minor = 9;
  int old_device = -1;  // the number of one with compute capability 6.1
  int numa_node = 0;    // cudaDevAttrHostNumaId
};

// What exists; a test that ends with any of it has leaked.
struct Alive {
  std::size_t streams = 0;
  std::size_t events = 0;
  std::size_t pools = 0;
  std::size_t device_allocations = 0;
  std::size_t pinned_regions = 0;
};

// Thread-safe. Errors are values of cudaError_t.
class Control {
 public:
  // Waits for all queued work, forgets everything, and begins anew. Requires: nothing of before is used again.
  virtual void reset(const Config& config) = 0;
  // The `nth` next call of a runtime function (1: the next one) returns `error` and does nothing; what waits does wait.
  virtual void fail_call(const std::string& call, std::uint64_t nth, int error) = 0;
  // The `nth` next kernel that runs loses the device: `error` is what every later call returns.
  virtual void fail_kernel(std::uint64_t nth, int error) = 0;
  // How often a function was entered since the reset.
  virtual std::uint64_t calls(const std::string& call) = 0;
  // What a GPU would not have told: memory freed while queued work still uses it, work on freed memory or on memory
  // that is not allocated yet, bytes written outside of an allocation.
  virtual std::vector<std::string> violations() = 0;
  virtual Alive alive() = 0;
  // Devices that have a context: those that a thread chose, and those that it had when it called what needs one.
  virtual std::vector<int> contexts() = 0;

 protected:
  ~Control() = default;
};

}  // namespace strata::fake_cuda

extern "C" {
// The one of this runtime; also for dlsym.
__attribute__((visibility("default"))) strata::fake_cuda::Control* strata_fake_cuda();
// A kernel: runs run(argument) once, in the order of `stream` (a cudaStream_t), on that stream's thread. Returns a
// cudaError_t; where that is not 0 nothing was queued.
int strata_fake_launch(void* stream, void (*run)(void*), void* argument);
}
