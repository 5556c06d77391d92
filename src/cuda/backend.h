// What the CUDA plug-in gives the program: one GPU behind the ports of core. Free of CUDA's headers, so that a program
// without the toolkit compiles against it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/device.h"
#include "core/optimizer_config.h"
#include "core/shard_optimizer.h"

namespace strata::cuda {

// What the driver says of a GPU.
struct DeviceFacts {
  int index = 0;                // of this process: CUDA_VISIBLE_DEVICES has been applied
  std::string name;             // "NVIDIA GeForce RTX 4090"
  std::string pci_bus_id = "";  // "0000:01:00.0": which one of the machine it is, in all its processes
  int major = 0;                // compute capability
  int minor = 0;
  std::size_t multiprocessors = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;        // now, other processes' use subtracted
  double memory_bytes_per_second = 0;  // by clock and bus width; 0 where the driver does not say
  int driver_version = 0;              // 13000 is 13.0
  int runtime_version = 0;
  int numa_node = -1;  // of its PCIe slot; -1 where unknown
};

// Host memory that the device copies at full speed, unpinned when this is destroyed. Must not outlive the backend.
class PinnedRegion {
 public:
  virtual ~PinnedRegion() = default;
};

struct BackendOptions {
  int device = 0;
  std::uint64_t budget_bytes = 0;  // of Device::allocate; what torch's allocator may take is beside it
};

// Where torch computes on this device's memory. Nowhere: the plug-in was built without torch. Host: with the fake
// runtime of the tests, whose device memory is the host's.
enum class TorchPlace : std::uint8_t { Nowhere, Device, Host };

// Thread-safety: as the ports say; facts(), pin(), optimizer() and math() from any thread. What it gave must not
// outlive it. After an error that no later call of CUDA survives, every call throws DeviceError with the first cause.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual DeviceFacts facts() = 0;
  virtual Device& device() = 0;
  // Pins memory that exists: whole pages, once. Throws: DeviceError; where the limit of locked memory is the reason it
  // says so.
  virtual std::unique_ptr<PinnedRegion> pin(std::span<std::byte> pages) = 0;
  // These queue their work on the stream whose launch() runs the caller; what they return is complete, because the
  // stream orders. Arrays lie in device memory, sums of squares in host memory, where they are when the call returns.
  virtual std::unique_ptr<ShardOptimizer> optimizer(const OptimizerConfig& config) = 0;
  virtual std::unique_ptr<ShardMath> math() = 0;

  // What this backend's user may take of the device by torch's allocator, beside the budget; replaces what was set
  // before and ends with the backend. The process has one such allocator: more than the sum over the living backends of
  // the device fails as out of memory. Requires: strata_cuda_torch_place() is Device.
  virtual void limit_torch(std::uint64_t bytes) = 0;
};

}  // namespace strata::cuda

extern "C" {
// Usable GPUs, up to the first that is too old; why there are none, or no more, in `why` (a text of at most `why_bytes`
// bytes with its end). Makes no context.
using strata_cuda_device_count_t = int(char* why, std::size_t why_bytes);
using strata_cuda_torch_place_t = strata::cuda::TorchPlace();
// Owned by the caller; null with the reason in `why`.
using strata_cuda_open_t = strata::cuda::Backend*(const strata::cuda::BackendOptions* options, char* why,
                                                  std::size_t why_bytes);
}
