#include "gpu/gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <utility>

#include "core/bytes.h"
#include "engine/cuda_plugin.h"
#include "support/pinned_buffer.h"

namespace strata::test {
namespace {

constexpr std::size_t kGuardBytes = 256;
constexpr std::byte kGuard{0xA5};
// Of device memory; misalignment beyond it makes no difference to any access.
constexpr std::size_t kAlignment = 256;

class NeedsGpu final : public ::testing::Environment {
 public:
  void SetUp() override {
    const engine::CudaDevices devices = engine::cuda_devices();
    if (devices.count == 0) GTEST_SKIP() << "no CUDA device: " << devices.why_no_more;
    const cuda::DeviceFacts facts = shared_gpu().facts();
    std::cout << "GPU: " << facts.name << ", capability " << facts.major << "." << facts.minor << "\n";
  }
};

const auto* const kNeedsGpu = ::testing::AddGlobalTestEnvironment(new NeedsGpu);

class HostedOptimizer final : public ShardOptimizer {
 public:
  explicit HostedOptimizer(const OptimizerConfig& config) : inner_(shared_gpu().optimizer(config)) {}
  std::vector<StateSpec> states(DType param) const override { return inner_->states(param); }
  bool reads_param(DType param) const override { return inner_->reads_param(param); }
  Event step(const StepContext& context, const ShardViews& views) override {
    ShardViews there = views;
    std::vector<TensorSpan> states;
    there.param = hosted_.place(views.param);
    there.grad = hosted_.place(views.grad);
    for (const TensorSpan& state : views.states) states.push_back(hosted_.place(state));
    there.states = states;
    hosted_.run([&] { inner_->step(context, there).wait(); });
    return {};
  }

 private:
  Hosted hosted_;
  std::unique_ptr<ShardOptimizer> inner_;
};

class HostedMath final : public ShardMath {
 public:
  void cast(TensorSpan destination, TensorSpan source) override {
    on_two(destination, source, [&](TensorSpan to, TensorSpan from) { inner_->cast(to, from); });
  }
  void accumulate(TensorSpan destination, TensorSpan source) override {
    on_two(destination, source, [&](TensorSpan to, TensorSpan from) { inner_->accumulate(to, from); });
  }
  void sum_rows(TensorSpan rows, std::size_t count, std::size_t into) override {
    const TensorSpan there = hosted_.place(rows);
    hosted_.run([&] { inner_->sum_rows(there, count, into); });
  }
  void block_sums_of_squares(TensorSpan values, std::span<double> sums) override {
    const TensorSpan there = hosted_.place(values);
    hosted_.run([&] { inner_->block_sums_of_squares(there, sums); });
  }
  void quantize(TensorSpan message, TensorSpan values, BlockCode code) override {
    on_two(message, values, [&](TensorSpan to, TensorSpan from) { inner_->quantize(to, from, code); });
  }
  void dequantize(TensorSpan values, TensorSpan message, BlockCode code) override {
    on_two(values, message, [&](TensorSpan to, TensorSpan from) { inner_->dequantize(to, from, code); });
  }
  void dequantize_add(TensorSpan sum, TensorSpan message, BlockCode code) override {
    on_two(sum, message, [&](TensorSpan to, TensorSpan from) { inner_->dequantize_add(to, from, code); });
  }

 private:
  template <typename Work>
  void on_two(const TensorSpan& destination, const TensorSpan& source, Work work) {
    const TensorSpan to = hosted_.place(destination), from = hosted_.place(source);
    hosted_.run([&] { work(to, from); });
  }

  Hosted hosted_;
  std::unique_ptr<ShardMath> inner_ = shared_gpu().math();
};

}  // namespace

std::unique_ptr<cuda::Backend> open_gpu(std::uint64_t budget_bytes) {
  cuda::BackendOptions options;
  options.budget_bytes = budget_bytes;
  return engine::open_cuda(options);
}

cuda::Backend& shared_gpu() {
  static cuda::Backend& backend = *open_gpu(std::uint64_t{1} << 30).release();
  return backend;
}

Buffer pinned(Budget& budget, std::size_t bytes) {
  return pinned_buffer(budget, bytes, [](std::span<std::byte> pages) { return shared_gpu().pin(pages); });
}

Hosted::Hosted()
    : budget_("arrays of the test", kBytes),
      host_(pinned(budget_, kBytes)),
      device_(shared_gpu().device().allocate(kBytes, MemoryTag::Staging)),
      stream_(shared_gpu().device().create_stream("test")) {}

TensorSpan Hosted::place(const TensorSpan& array) {
  const std::size_t misalignment = reinterpret_cast<std::uintptr_t>(array.data) % kAlignment;
  const std::size_t offset = align_up(used_ + kGuardBytes, kAlignment) + misalignment;
  if (offset + array.bytes() + kGuardBytes > kBytes) throw std::logic_error("arrays of the test are too large");
  placed_.push_back({array, offset});
  used_ = offset + array.bytes() + kGuardBytes;
  return {device_.data() + offset, array.dtype, array.numel};
}

void Hosted::copy_in() {
  std::fill_n(host_.data(), used_, kGuard);
  for (const Placed& each : placed_) {
    if (each.host.numel > 0) std::memcpy(host_.data() + each.offset, each.host.data, each.host.bytes());
  }
  stream_->copy(device_.data(), host_.data(), used_);
}

void Hosted::copy_out() {
  std::size_t end = 0;  // of the array before
  const auto expect_guards = [&](std::size_t until) {
    const bool intact = std::all_of(host_.data() + end, host_.data() + until, [](std::byte b) { return b == kGuard; });
    if (!intact) throw std::logic_error("the device wrote beside an array");
  };
  for (const Placed& each : placed_) {
    expect_guards(each.offset);
    if (each.host.numel > 0) std::memcpy(each.host.data, host_.data() + each.offset, each.host.bytes());
    end = each.offset + each.host.bytes();
  }
  expect_guards(used_);
}

void Hosted::run(const std::function<void()>& work) {
  copy_in();
  stream_->launch(work);
  stream_->copy(host_.data(), device_.data(), used_);
  const std::exception_ptr failure = stream_->record().wait_noexcept();
  if (failure) stream_ = shared_gpu().device().create_stream("test");  // the old one has failed for good
  if (!failure) copy_out();
  placed_.clear();
  used_ = 0;
  if (failure) std::rethrow_exception(failure);
}

std::unique_ptr<ShardOptimizer> hosted_optimizer(const OptimizerConfig& config) {
  return std::make_unique<HostedOptimizer>(config);
}

std::unique_ptr<ShardMath> hosted_math() {
  return std::make_unique<HostedMath>();
}

}  // namespace strata::test
