#include "cuda/cuda_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "cuda/fake_device.h"

namespace strata::test {
namespace {

constexpr std::uint64_t kBudgetBytes = std::uint64_t{1} << 20;

cuda::CudaDeviceOptions options() {
  return {.index = 0, .budget_bytes = kBudgetBytes, .on_stream_thread = {}};
}

std::string refusal(Device& device, std::size_t bytes) {
  try {
    device.allocate(bytes, MemoryTag::Gather);
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "none";
}

TEST(CudaMemory, PaysForWholePages) {
  const FakeRuntime runtime;
  cuda::CudaDevice device(options());
  const Buffer buffer = device.allocate(kPageBytes + 1, MemoryTag::Gather);
  EXPECT_EQ(device.budget().used(), 2 * kPageBytes);
}

TEST(CudaMemory, PaysForThePageMoreThatAlignmentTakes) {
  const FakeRuntime runtime({.unaligned = true});
  cuda::CudaDevice device(options());
  {
    const Buffer buffer = device.allocate(kPageBytes, MemoryTag::Gather);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % kPageBytes, 0U);
    EXPECT_EQ(device.budget().used(), 2 * kPageBytes);
  }
  EXPECT_EQ(device.budget().used(), 0U);
}

TEST(CudaMemory, ComesFromAPoolOfItsOwnWhereTheDeviceHasPools) {
  const FakeRuntime runtime;
  cuda::CudaDevice device(options());
  device.allocate(kPageBytes, MemoryTag::Gather);
  EXPECT_EQ(fake().alive().pools, 1U);
  EXPECT_EQ(fake().calls("cudaMallocFromPoolAsync"), 1U);
  EXPECT_EQ(fake().calls("cudaMalloc"), 0U);
}

TEST(CudaMemory, IsPlainWhereTheDeviceHasNoPools) {
  const FakeRuntime runtime({.pools = false});
  cuda::CudaDevice device(options());
  device.allocate(kPageBytes, MemoryTag::Gather);
  EXPECT_EQ(fake().calls("cudaMalloc"), 1U);
  EXPECT_EQ(fake().calls("cudaFree"), 1U);
  EXPECT_EQ(fake().calls("cudaMemPoolCreate"), 0U);
}

TEST(CudaMemory, WhatTheDeviceHasNotGotIsRefusedWithWhatToChange) {
  for (const bool pools : {true, false}) {
    const FakeRuntime runtime({.memory_bytes = 64 * 1024, .pools = pools});
    cuda::CudaDevice device(options());
    const Buffer most = device.allocate(48 * 1024, MemoryTag::Gather);

    const std::string text = refusal(device, 32 * 1024);

    EXPECT_THAT(text, testing::HasSubstr("32.00 KiB"));
    EXPECT_THAT(text, testing::HasSubstr("1.00 MiB"));  // the budget
    EXPECT_THAT(text, testing::HasSubstr("16.00 KiB of 64.00 KiB are free"));
    EXPECT_THAT(text, testing::HasSubstr("Lower the device budget"));
    EXPECT_EQ(device.budget().used(), 48U * 1024U);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_NO_THROW(device.allocate(16 * 1024, MemoryTag::Gather));
  }
}

TEST(CudaMemory, AnotherErrorOfTheAllocationIsNoLackOfMemory) {
  const FakeRuntime runtime;
  cuda::CudaDevice device(options());
  fake().fail_call("cudaMallocFromPoolAsync", 1, cudaErrorNotSupported);
  EXPECT_THAT(refusal(device, kPageBytes), testing::HasSubstr("cudaMallocFromPoolAsync failed: cudaErrorNotSupported"));
  EXPECT_EQ(device.budget().used(), 0U);
}

TEST(CudaMemory, AFreeThatFailsIsLogged) {
  const FakeRuntime runtime;
  cuda::CudaDevice device(options());
  Buffer buffer = device.allocate(kPageBytes, MemoryTag::Gather);
  std::byte* const data = buffer.data();
  fake().fail_call("cudaFreeAsync", 1, cudaErrorInvalidValue);
  testing::internal::CaptureStderr();
  buffer.reset();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("cudaFreeAsync failed"));
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

TEST(CudaMemory, IsTakenAndGivenBackFromSeveralThreads) {
  const FakeRuntime runtime({.seed = 3});
  cuda::CudaDevice device(options());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10; ++i) device.allocate(kPageBytes, MemoryTag::Gather);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(device.budget().used(), 0U);
}

}  // namespace
}  // namespace strata::test
