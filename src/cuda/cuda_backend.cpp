#include "cuda/cuda_backend.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "core/error.h"
#include "cuda/cuda_device.h"
#include "cuda/cuda_optimizer.h"
#include "cuda/cuda_shard_math.h"
#include "cuda/device_facts.h"
#include "cuda/device_shares.h"
#include "cuda/errors.h"
#include "cuda/pinned_pages.h"
#include "cuda/torch_part.h"

namespace strata::cuda {
namespace {

constexpr int kLeastMajor = 8;  // what kernels/CMakeLists.txt builds for

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

// Empty where the kernels run on it. Makes no context.
std::string too_old(int device) {
  const int major = attribute(cudaDevAttrComputeCapabilityMajor, device);
  if (major >= kLeastMajor) return "";
  cudaDeviceProp properties = {};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return std::string(properties.name) + " has compute capability " + std::to_string(major) + "." +
         std::to_string(attribute(cudaDevAttrComputeCapabilityMinor, device)) + "; " + std::to_string(kLeastMajor) +
         ".0 is the least that works";
}

// Torch has a current stream per thread of its own.
std::function<void(cudaStream_t)> torch_hook(int device) {
  const TorchPart* const torch = torch_part();
  if (torch == nullptr) return {};
  torch->start(device);
  return [torch, device](cudaStream_t stream) { torch->on_stream_thread(device, stream); };
}

std::function<bool(cudaStream_t)> torch_end_hook(int device) {
  const TorchPart* const torch = torch_part();
  if (torch == nullptr) return {};
  return [torch, device](cudaStream_t stream) { return torch->before_stream_ends(device, stream); };
}

// Torch has one allocator for each device of the process, whose limit all backends share.
DeviceShares& torch_shares() {
  static auto* const shares =
      new DeviceShares([](int device, std::optional<std::uint64_t> sum) { torch_part()->limit(device, sum); });
  return *shares;
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const BackendOptions& options)
      : device_index_(options.device),
        device_({.index = options.device,
                 .budget_bytes = options.budget_bytes,
                 .on_stream_thread = torch_hook(options.device),
                 .before_stream_ends = torch_end_hook(options.device)}) {
    if (const std::string why = too_old(options.device); !why.empty()) throw DeviceError(why);
  }

  DeviceFacts facts() override { return read_facts(device_.context()); }
  Device& device() override { return device_; }
  std::unique_ptr<PinnedRegion> pin(std::span<std::byte> pages) override { return pin_pages(device_.context(), pages); }
  std::unique_ptr<ShardOptimizer> optimizer(const OptimizerConfig& config) override {
    device_.context().throw_if_lost();
    return make_cuda_optimizer(config);
  }
  std::unique_ptr<ShardMath> math() override { return make_cuda_shard_math(device_.context()); }
  void limit_torch(std::uint64_t bytes) override {
    STRATA_EXPECTS(torch_part() != nullptr, "a plug-in with torch");
    device_.context().throw_if_lost();
    torch_share_ = torch_shares().add(device_index_, bytes);
  }

 private:
  const int device_index_;
  CudaDevice device_;
  DeviceShares::Share torch_share_;
};

}  // namespace

int count_devices(std::string& why) {
  try {
    int count = 0;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    if (count == 0) why = "the CUDA driver finds no GPU";
    int usable = 0;
    while (usable < count && (why = too_old(usable)).empty()) ++usable;
    return usable;
  } catch (const DeviceError& failure) {
    why = failure.what();
    return 0;
  }
}

std::unique_ptr<Backend> open_backend(const BackendOptions& options) {
  return std::make_unique<CudaBackend>(options);
}

}  // namespace strata::cuda
