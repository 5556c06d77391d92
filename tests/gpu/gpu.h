// The GPU of the tests: that of the CUDA plug-in which STRATA_CUDA_PLUGIN names, device 0. Without one every test of
// the program is skipped, with the reason (gpu.cpp).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "core/buffer.h"
#include "core/device.h"
#include "core/shard_optimizer.h"
#include "cuda/backend.h"

namespace strata::test {

std::unique_ptr<cuda::Backend> open_gpu(std::uint64_t budget_bytes);

// One for all tests that need no budget of their own. Never closed: the driver is gone before static objects are.
cuda::Backend& shared_gpu();

// Host memory that the GPU copies at full speed.
Buffer pinned(Budget& budget, std::size_t bytes);

// A device that owns its back-end.
class GpuDevice final : public Device {
 public:
  explicit GpuDevice(std::uint64_t budget_bytes) : backend_(open_gpu(budget_bytes)) {}
  std::string_view name() const override { return backend_->device().name(); }
  std::unique_ptr<Stream> create_stream(std::string name) override {
    return backend_->device().create_stream(std::move(name));
  }
  Buffer allocate(std::size_t bytes, MemoryTag tag) override { return backend_->device().allocate(bytes, tag); }
  Budget& budget() override { return backend_->device().budget(); }

 private:
  std::unique_ptr<cuda::Backend> backend_;
};

// Runs work on arrays of host memory in device memory: each array is copied there, equally misaligned and with guards
// around it, and copied back. One thread.
class Hosted {
 public:
  static constexpr std::size_t kBytes = std::size_t{64} << 20;  // of all arrays of one call, with guards

  Hosted();
  // The place of `array` in device memory during the next run().
  TensorSpan place(const TensorSpan& array);
  // Copies what was placed, calls `work` on a stream, copies back and forgets the places.
  // Throws: what `work` throws; std::logic_error where it wrote beside an array.
  void run(const std::function<void()>& work);

 private:
  struct Placed {
    TensorSpan host;
    std::size_t offset = 0;
  };
  void copy_in();
  void copy_out();

  Budget budget_;
  Buffer host_;
  Buffer device_;
  std::unique_ptr<Stream> stream_;
  std::vector<Placed> placed_;
  std::size_t used_ = 0;
};

// The optimizer and the arithmetic of the GPU, on views in host memory.
std::unique_ptr<ShardOptimizer> hosted_optimizer(const OptimizerConfig& config);
std::unique_ptr<ShardMath> hosted_math();

}  // namespace strata::test
