#include "cuda/errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "core/error.h"
#include "cuda/fake_device.h"

namespace strata::test {
namespace {

using cuda::DeviceContext;
using cuda::DeviceScope;

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

TEST(DeviceScope, GivesTheThreadItsDeviceBack) {
  const FakeRuntime runtime({.devices = 2});
  DeviceContext context(1);
  int device = -1;
  {
    const DeviceScope scope(context);
    ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
    EXPECT_EQ(device, 1);
  }
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 0);
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

TEST(CudaDevice, TakesItsMemoryFromItsOwnDevice) {
  for (const bool pools : {true, false}) {
    const FakeRuntime runtime({.devices = 2, .memory_bytes = 1 << 20, .pools = pools});
    cuda::CudaDevice device({.index = 1, .budget_bytes = 1 << 20, .on_stream_thread = {}});
    const Buffer buffer = device.allocate(kPageBytes, MemoryTag::Gather);
    std::size_t available = 0;
    std::size_t total = 0;

    const DeviceScope scope(device.context());
    ASSERT_EQ(cudaMemGetInfo(&available, &total), cudaSuccess);
    EXPECT_EQ(available, total - kPageBytes);
  }
}

}  // namespace
}  // namespace strata::test
