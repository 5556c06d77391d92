#include "cuda/errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "core/error.h"
#include "cuda/cuda_shard_math.h"
#include "cuda/device_facts.h"
#include "cuda/fake_device.h"

namespace strata::test {
namespace {

using cuda::DeviceContext;

template <typename Function>
std::string device_error_of(Function&& function) {
  try {
    function();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "success";
}

TEST(Check, NamesTheCallTheErrorAndItsText) {
  EXPECT_EQ(device_error_of([] { cuda::check(cudaErrorMemoryAllocation, "cudaMalloc"); }),
            "cudaMalloc failed: cudaErrorMemoryAllocation, out of memory");
  EXPECT_EQ(device_error_of([] { cuda::check(cudaSuccess, "cudaMalloc"); }), "success");
}

TEST(Check, LeavesNoErrorForWhoeverAsksTheRuntimeNext) {
  const FakeRuntime runtime;
  EXPECT_THROW(cuda::check(cudaEventDestroy(nullptr), "cudaEventDestroy"), DeviceError);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(DeviceContext, ThrowsWhereThereIsNoSuchDevice) {
  const FakeRuntime runtime;
  EXPECT_THAT(device_error_of([] { DeviceContext context(1); }), testing::HasSubstr("cudaErrorInvalidDevice"));
}

TEST(DeviceContext, ForgetsAnErrorThatTheDeviceSurvives) {
  const FakeRuntime runtime;
  DeviceContext context(0);
  EXPECT_THROW(context.check(cudaErrorInvalidValue, "cudaMemcpyAsync"), DeviceError);
  EXPECT_NO_THROW(context.check(cudaSuccess, "cudaMemcpyAsync"));
  EXPECT_NO_THROW(context.throw_if_lost());
}

TEST(DeviceContext, ThrowsTheFirstStickyErrorFromThenOn) {
  const FakeRuntime runtime;
  DeviceContext context(0);
  const std::string first = device_error_of([&] { context.check(cudaErrorIllegalAddress, "cudaEventSynchronize"); });

  EXPECT_THAT(first, testing::HasSubstr("cudaEventSynchronize failed: cudaErrorIllegalAddress"));
  EXPECT_THAT(first, testing::HasSubstr("until the program is started again"));
  EXPECT_EQ(device_error_of([&] { context.check(cudaErrorLaunchFailure, "cudaMalloc"); }), first);
  EXPECT_EQ(device_error_of([&] { context.check(cudaErrorInvalidValue, "cudaMalloc"); }), first);
  EXPECT_EQ(device_error_of([&] { context.check(cudaSuccess, "cudaMalloc"); }), first);
  EXPECT_EQ(device_error_of([&] { context.throw_if_lost(); }), first);
}

TEST(DeviceContext, LogsErrorsOfDestructorsUntilTheDeviceIsLost) {
  const FakeRuntime runtime;
  DeviceContext context(0);
  testing::internal::CaptureStderr();
  context.log(cudaSuccess, "cudaFree");
  context.log(cudaErrorInvalidValue, "cudaFreeAsync");
  EXPECT_THROW(context.check(cudaErrorIllegalAddress, "cudaEventSynchronize"), DeviceError);
  context.log(cudaErrorIllegalAddress, "cudaEventDestroy");
  const std::string text = testing::internal::GetCapturedStderr();

  EXPECT_THAT(text, testing::HasSubstr("cudaFreeAsync failed: cudaErrorInvalidValue"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("cudaFree failed")));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("cudaEventDestroy")));
}

// The fake refuses an event of one device on a stream of another, as CUDA does.
TEST(CudaDevice, WorksAsTheSecondDeviceFromThreadsThatNeverChoseIt) {
  const FakeRuntime runtime({.devices = 2});
  cuda::CudaDevice device({.index = 1, .budget_bytes = 1 << 20, .on_stream_thread = {}});
  std::thread([&] {
    const auto stream = device.create_stream("s");
    stream->retire(device.allocate(kPageBytes, MemoryTag::Gather), stream->record());
    EXPECT_NO_THROW(stream->record().wait());
  }).join();
  EXPECT_EQ(device.name(), "cuda:1");
}

// A context takes hundreds of megabytes of a device that perhaps is another rank's.
TEST(CudaDevice, MakesNoContextOnAnotherDevice) {
  const FakeRuntime runtime({.devices = 2});
  auto device = std::make_unique<cuda::CudaDevice>(
      cuda::CudaDeviceOptions{.index = 1, .budget_bytes = 1 << 20, .on_stream_thread = {}});
  Budget host_budget("host of the test", 1 << 20);
  std::thread([&] {  // what one thread makes another one ends
    auto host = std::make_unique<Buffer>(pinned(device->context(), host_budget, kPageBytes));
    auto memory = std::make_unique<Buffer>(device->allocate(kPageBytes, MemoryTag::Gather));
    auto stream = device->create_stream("s");
    stream->copy(memory->data(), host->data(), kPageBytes);
    stream->record().wait();
    auto math = cuda::make_cuda_shard_math(device->context());
    std::thread([&] { math.reset(); }).join();
    std::thread([&] { stream.reset(); }).join();
    std::thread([&] { memory.reset(); }).join();
    std::thread([&] { host.reset(); }).join();
    std::thread([&] { static_cast<void>(cuda::read_facts(device->context())); }).join();
    std::thread([&] { device.reset(); }).join();
  })
      .join();

  EXPECT_THAT(fake().contexts(), testing::ElementsAre(1));
}

TEST(CudaDevice, TakesItsMemoryFromItsOwnDevice) {
  for (const bool pools : {true, false}) {
    const FakeRuntime runtime({.devices = 2, .memory_bytes = 1 << 20, .pools = pools});
    cuda::CudaDevice device({.index = 1, .budget_bytes = 1 << 20, .on_stream_thread = {}});
    const Buffer buffer = device.allocate(kPageBytes, MemoryTag::Gather);
    std::size_t available = 0;
    std::size_t total = 0;

    device.context().bind_thread();
    ASSERT_EQ(cudaMemGetInfo(&available, &total), cudaSuccess);
    EXPECT_EQ(available, total - kPageBytes);
  }
}

}  // namespace
}  // namespace strata::test
