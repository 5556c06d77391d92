// A CUDA device over the fake runtime, with the host memory that its tests use.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "core/buffer.h"
#include "core/bytes.h"
#include "cuda/cuda_device.h"
#include "cuda/current_stream.h"
#include "cuda/pinned_pages.h"
#include "support/fake_cuda/fake_cuda.h"
#include "support/pinned_buffer.h"

namespace strata::test {

inline fake_cuda::Control& fake() {
  return *strata_fake_cuda();
}

// Queues `kernel` on the stream whose launch() runs the caller.
inline void launch_kernel(std::function<void()> kernel) {
  auto* const argument = new std::function<void()>(std::move(kernel));
  const auto run = [](void* pointer) {
    const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(pointer));
    (*owned)();
  };
  const int error = strata_fake_launch(cuda::current_stream(), run, argument);
  if (error == cudaSuccess) return;
  delete argument;
  cuda::check(static_cast<cudaError_t>(error), "strata_fake_launch");
}

// Host memory that is pinned while the buffer lives.
inline Buffer pinned(cuda::DeviceContext& context, Budget& budget, std::size_t bytes) {
  return pinned_buffer(budget, bytes, [&](std::span<std::byte> pages) { return cuda::pin_pages(context, pages); });
}

// Begins with a fresh runtime; ends with nothing alive in it and nothing done to memory that a GPU would have hidden.
class FakeRuntime {
 public:
  explicit FakeRuntime(const fake_cuda::Config& config = {}) { fake().reset(config); }
  ~FakeRuntime() {
    EXPECT_THAT(fake().violations(), testing::IsEmpty());
    if (lost) return;  // a lost device frees nothing
    const fake_cuda::Alive alive = fake().alive();
    EXPECT_EQ(alive.streams, 0U);
    EXPECT_EQ(alive.events, 0U);
    EXPECT_EQ(alive.pools, 0U);
    EXPECT_EQ(alive.device_allocations, 0U);
    EXPECT_EQ(alive.pinned_regions, 0U);
  }
  FakeRuntime(const FakeRuntime&) = delete;
  FakeRuntime& operator=(const FakeRuntime&) = delete;

  bool lost = false;  // set by tests that lose the device
};

}  // namespace strata::test
