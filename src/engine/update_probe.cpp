#include "engine/update_probe.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "core/host_device.h"
#include "core/page_mapping.h"
#include "core/parallel.h"
#include "cpu_adam/cpu_optimizer.h"
#include "engine/cuda_plugin.h"

namespace strata::engine {
namespace {

using namespace strata::literals;

// Large enough that an update of AdamW leaves most caches, small enough for a start that nobody notices.
constexpr std::size_t kHostNumel = 1 << 20;
// On a GPU a launch must be short beside the update.
constexpr std::size_t kCudaNumel = 1 << 24;
constexpr std::size_t kCopiedBytes = 32_MiB;
constexpr int kRounds = 3;

template <typename Fn>
double best_seconds(Fn&& fn) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    fn();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

// Parameter, gradient and states of one update, in memory that `make` gives for so many bytes.
class Arrays {
 public:
  template <typename Make>
  Arrays(const std::vector<StateSpec>& specs, DType param_type, std::size_t numel, Make make) : numel_(numel) {
    const auto array = [&](DType dtype, std::size_t values) {
      return TensorSpan{make(values * bytes_of(dtype)), dtype, values};
    };
    param_ = array(param_type, numel);
    grad_ = array(param_type, numel);
    for (const StateSpec& spec : specs) states_.push_back(array(spec.dtype, spec.values_for(numel)));
  }
  ShardViews views() const { return {param_, grad_, states_, segments_, 0}; }
  std::size_t numel() const { return numel_; }

 private:
  std::size_t numel_;
  TensorSpan param_, grad_;
  std::vector<TensorSpan> states_;
  std::vector<Segment> segments_{{.name = "probe", .shape = {}, .offset = 0, .numel = numel_}};
};

double seconds_per_element_on_host(const UpdateProbe& probe) {
  const std::unique_ptr<Parallel> pool = make_thread_pool(probe.threads);
  cpu_adam::CpuOptimizer optimizer(*pool, probe.optimizer);
  std::vector<std::vector<std::byte>> memory;
  const Arrays arrays(optimizer.states(probe.param_type), probe.param_type, kHostNumel,
                      [&](std::size_t bytes) { return memory.emplace_back(bytes).data(); });
  return best_seconds([&] { optimizer.step({}, arrays.views()).wait(); }) / static_cast<double>(arrays.numel());
}

// Both directions of the link alone, seconds per byte.
void measure_copies(Device& device, Buffer& host, zero::UpdateCosts& costs) {
  const Buffer there = device.allocate(host.bytes(), MemoryTag::Staging);
  const std::unique_ptr<Stream> stream = device.create_stream("probe");
  const auto seconds_per_byte = [&](std::byte* to, const std::byte* from) {
    return best_seconds([&] {
             stream->copy(to, from, host.bytes());
             stream->record().wait();
           }) /
           static_cast<double>(host.bytes());
  };
  costs.to_device = seconds_per_byte(there.data(), host.data());
  costs.to_host = seconds_per_byte(host.data(), there.data());
}

double seconds_per_element_on_gpu(cuda::Backend& gpu, const UpdateProbe& probe, std::uint64_t usable) {
  const std::unique_ptr<ShardOptimizer> optimizer = gpu.optimizer(probe.optimizer);
  const double each = 2.0 * static_cast<double>(bytes_of(probe.param_type)) +
                      state_bytes_per_element(probe.optimizer, probe.param_type);
  const auto numel = static_cast<std::size_t>(static_cast<double>(usable) / each) / kPageBytes * kPageBytes;
  const std::unique_ptr<Stream> stream = gpu.device().create_stream("probe");
  std::vector<Buffer> memory;
  const Arrays arrays(
      optimizer->states(probe.param_type), probe.param_type, std::min(numel, kCudaNumel),
      [&](std::size_t bytes) { return memory.emplace_back(gpu.device().allocate(bytes, MemoryTag::Staging)).data(); });
  return best_seconds([&] {
           // A step size of zero: what lies in the memory does not matter, and nothing slows down over it.
           stream->launch([&] { optimizer->step({}, arrays.views()).wait(); });
           stream->record().wait();
         }) /
         static_cast<double>(arrays.numel());
}

}  // namespace

zero::UpdateCosts measure_update_costs(const UpdateProbe& probe) {
  zero::UpdateCosts costs;
  costs.host_update = seconds_per_element_on_host(probe);
  Budget budget("memory of the probe", whole_pages(kCopiedBytes));
  if (!probe.cuda_device) {
    Buffer host = allocate_host(budget, kHostNumel * bytes_of(probe.param_type), MemoryTag::Staging);
    HostDevice device(host.bytes());
    measure_copies(device, host, costs);
    // The device's optimizer is the processor's, on the processor's cores: nothing more to measure.
    costs.device_update = costs.host_update;
    costs.cores = zero::UpdateCosts::Cores::Shared;
    return costs;
  }
  const auto gpu = open_cuda({.device = *probe.cuda_device, .budget_bytes = 1_GiB});
  // A GPU that is nearly full is measured with less.
  const std::uint64_t usable = std::min<std::uint64_t>(gpu->facts().free_bytes / 2, 512_MiB);
  const std::uint64_t copied = std::min<std::uint64_t>(usable, kCopiedBytes) / kPageBytes * kPageBytes;
  if (copied == 0) throw DeviceError("the memory of " + gpu->facts().name + " is full");
  Buffer host = allocate_host(budget, copied, MemoryTag::Staging);
  const auto pinned = gpu->pin(host.span());
  measure_copies(gpu->device(), host, costs);
  costs.device_update = seconds_per_element_on_gpu(*gpu, probe, usable);
  return costs;
}

}  // namespace strata::engine
