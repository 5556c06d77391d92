#include "zero/torch_allocator.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <thread>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"

namespace strata::zero {
namespace {

using namespace strata::literals;

at::Tensor bytes_tensor(std::uint64_t bytes) {
  return at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions(at::kByte));
}

TEST(TorchAllocator, CountsWhatTensorsHoldAndReturnsIt) {
  Budget budget("host", 1_MiB);
  const TorchAllocator allocator(budget);
  {
    const at::Tensor tensor = bytes_tensor(100_KiB);
    EXPECT_EQ(budget.used(MemoryTag::Activation), 100_KiB + 64);
  }
  EXPECT_EQ(budget.used(), 0);
  EXPECT_EQ(budget.peak(), 100_KiB + 64);
}

TEST(TorchAllocator, RefusesWhatDoesNotFitAndWorksAgainAfterwards) {
  Budget budget("host", 1_MiB);
  const TorchAllocator allocator(budget);
  const at::Tensor held = bytes_tensor(600_KiB);
  EXPECT_THROW(bytes_tensor(600_KiB), OutOfBudget);
  EXPECT_EQ(budget.used(), 600_KiB + 64);
  EXPECT_NO_THROW(bytes_tensor(300_KiB));
}

TEST(TorchAllocator, RefusalInsideBackwardReachesTheCallerAsOutOfBudget) {
  Budget budget("host", 1_MiB);
  const TorchAllocator allocator(budget);
  const at::Tensor x = at::ones({50'000}).requires_grad_(true);  // 200 kB
  const at::Tensor y = (x * x).exp().sum();                      // exp is saved: 600 kB with the transient product
  EXPECT_THROW(
      {
        const at::Tensor blocker = bytes_tensor(budget.limit() - budget.used() - 100'000);
        torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true);
      },
      OutOfBudget);
  EXPECT_NO_THROW(torch::autograd::grad({y}, {x}));
}

TEST(TorchAllocator, AlignsTo64Bytes) {
  Budget budget("host", 1_MiB);
  const TorchAllocator allocator(budget);
  for (const std::uint64_t bytes : {1, 63, 64, 65, 1000}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes_tensor(bytes).data_ptr()) % 64, 0);
  }
}

TEST(TorchAllocator, PutsThePreviousAllocatorBack) {
  c10::Allocator* const before = c10::GetCPUAllocator();
  Budget outer_budget("outer", 1_MiB);
  {
    const TorchAllocator outer(outer_budget);
    {
      Budget inner_budget("inner", 1_MiB);
      const TorchAllocator inner(inner_budget);
      EXPECT_EQ(c10::GetCPUAllocator(), &inner);
    }
    EXPECT_EQ(c10::GetCPUAllocator(), &outer);
  }
  EXPECT_EQ(c10::GetCPUAllocator(), before);
}

TEST(TorchAllocator, TensorsMayOutliveItAndItsBudget) {
  at::Tensor survivor;
  {
    Budget budget("host", 1_MiB);
    const TorchAllocator allocator(budget);
    survivor = at::ones({1000});
  }
  EXPECT_EQ(survivor.sum().item().toDouble(), 1000);
  survivor = at::Tensor();
}

TEST(TorchAllocator, ThreadsAllocateAndFreeEachOthersTensors) {
  Budget budget("host", 64_MiB);
  const TorchAllocator allocator(budget);
  std::vector<at::Tensor> tensors(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    threads.emplace_back([&, i] {
      for (std::uint64_t k = 1; k <= 500; ++k) tensors[i] = bytes_tensor(k * 7);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.used(), 4 * (align_up(3500, 64) + 64));
  tensors.clear();
  EXPECT_EQ(budget.used(), 0);
}

}  // namespace
}  // namespace strata::zero
