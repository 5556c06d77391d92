#include "engine/accelerator.h"

#include <functional>
#include <optional>
#include <utility>

#include "core/host_device.h"
#include "core/parallel.h"
#include "cpu_adam/cpu_optimizer.h"
#include "cpu_adam/cpu_shard_math.h"
#include "engine/cuda_plugin.h"
#include "zero/torch_allocator.h"
#include "zero/torch_failure.h"

namespace strata::engine {
namespace {

HostDeviceOptions host_options(const EngineConfig& config) {
  HostDeviceOptions options;
  if (config.adversarial_streams) options.mode = HostDeviceOptions::Mode::Adversarial;
  options.seed = config.seed;
  return options;
}

// Whether launches come in the order of what the stream has queued by themselves, or must wait for it: torch and Gloo
// with the fake runtime work in the device's memory on the host, where kernels would be queued behind it.
enum class Order : std::uint8_t { OfTheStream, AfterItsWork };

// A device's stream whose launches call libraries: what they throw leaves as errors of this project.
class LibraryStream final : public Stream {
 public:
  LibraryStream(std::unique_ptr<Stream> stream, std::uint64_t torch_bytes, Order order)
      : stream_(std::move(stream)), torch_bytes_(torch_bytes), order_(order) {}
  void launch(std::function<void()> fn) override {
    if (order_ == Order::AfterItsWork) stream_->record().wait_noexcept();
    stream_->launch([fn = std::move(fn), bytes = torch_bytes_] { zero::with_torch_failures(fn, bytes); });
  }
  void copy(std::byte* destination, const std::byte* source, std::size_t bytes) override {
    stream_->copy(destination, source, bytes);
  }
  void wait(const Event& event) override { stream_->wait(event); }
  Event record() override { return stream_->record(); }
  void retire(Buffer buffer, Event event) override { stream_->retire(std::move(buffer), std::move(event)); }

 private:
  const std::unique_ptr<Stream> stream_;
  const std::uint64_t torch_bytes_;
  const Order order_;
};

class HostAccelerator final : public Accelerator {
 public:
  HostAccelerator(const EngineConfig& config, const AcceleratorNeeds& needs)
      : planned_bytes_(needs.torch_bytes),
        device_(needs.budget_bytes, host_options(config)),
        torch_allocator_(device_.budget()),
        pool_(make_thread_pool(needs.update_threads)),
        one_thread_(make_thread_pool(1)),
        optimizer_(*pool_, config.optimizer),
        math_(*one_thread_) {}

  Device& device() override { return device_; }
  ShardOptimizer& optimizer() override { return optimizer_; }
  ShardMath& math() override { return math_; }
  std::unique_ptr<cuda::PinnedRegion> pin(std::span<std::byte>) override { return nullptr; }
  std::unique_ptr<Stream> create_library_stream(const std::string& name) override {
    auto stream = std::make_unique<LibraryStream>(device_.create_stream(name), planned_bytes_, Order::OfTheStream);
    stream->launch([this] { torch_allocator_.pay_on_this_thread(); });
    return stream;
  }

 private:
  const std::uint64_t planned_bytes_;
  HostDevice device_;
  zero::TorchAllocator torch_allocator_;
  const std::unique_ptr<Parallel> pool_;
  const std::unique_ptr<Parallel> one_thread_;
  cpu_adam::CpuOptimizer optimizer_;
  cpu_adam::CpuShardMath math_;
};

class CudaAccelerator final : public Accelerator {
 public:
  CudaAccelerator(const EngineConfig& config, const AcceleratorNeeds& needs)
      : planned_bytes_(needs.torch_bytes),
        backend_(open_cuda({.device = *config.cuda_device, .budget_bytes = needs.budget_bytes})),
        optimizer_(backend_->optimizer(config.optimizer)),
        math_(backend_->math()) {
    if (cuda_devices().torch == cuda::TorchPlace::Host) {
      torch_allocator_.emplace(device().budget());
      return;
    }
    torch_bytes_ = device().budget().reserve(needs.torch_bytes, MemoryTag::Activation);
    zero::with_torch_failures([&] { backend_->limit_torch(needs.torch_bytes); }, planned_bytes_);
  }

  Device& device() override { return backend_->device(); }
  ShardOptimizer& optimizer() override { return *optimizer_; }
  ShardMath& math() override { return *math_; }
  std::unique_ptr<cuda::PinnedRegion> pin(std::span<std::byte> pages) override {
    return pages.empty() ? nullptr : backend_->pin(pages);
  }
  std::unique_ptr<Stream> create_library_stream(const std::string& name) override {
    auto stream = std::make_unique<LibraryStream>(device().create_stream(name), planned_bytes_,
                                                  torch_allocator_ ? Order::AfterItsWork : Order::OfTheStream);
    if (torch_allocator_) stream->launch([this] { torch_allocator_->pay_on_this_thread(); });
    return stream;
  }

 private:
  const std::uint64_t planned_bytes_;
  const std::unique_ptr<cuda::Backend> backend_;
  const std::unique_ptr<ShardOptimizer> optimizer_;
  const std::unique_ptr<ShardMath> math_;
  Reservation torch_bytes_;
  std::optional<zero::TorchAllocator> torch_allocator_;  // where torch computes on the host
};

}  // namespace

std::unique_ptr<Accelerator> make_accelerator(const EngineConfig& config, const AcceleratorNeeds& needs) {
  if (config.cuda_device) return std::make_unique<CudaAccelerator>(config, needs);
  return std::make_unique<HostAccelerator>(config, needs);
}

}  // namespace strata::engine
