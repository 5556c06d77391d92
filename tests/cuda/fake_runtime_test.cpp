// The fake runtime itself: what its streams, events and memory share with CUDA's, and what it catches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/event.h"
#include "cuda/fake_device.h"

namespace strata::test {
namespace {

class FakeCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    fake().reset({.seed = 2, .memory_bytes = 64 * 1024});
    for (cudaStream_t* const stream : {&first_, &second_}) {
      ASSERT_EQ(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), cudaSuccess);
    }
    ASSERT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), cudaSuccess);
  }
  void TearDown() override { fake().reset({}); }

  static void kernel(cudaStream_t stream, std::function<void()> run) {
    const cuda::CurrentStream current(stream);
    launch_kernel(std::move(run));
  }
  // Holds a stream up until the gate is opened.
  static void hold(cudaStream_t stream, const EventSource& gate) {
    kernel(stream, [opened = gate.event()] { opened.wait(); });
  }
  static std::byte* allocated(std::size_t bytes) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
    return static_cast<std::byte*>(memory);
  }
  static std::string violation() {
    const auto all = fake().violations();
    return all.empty() ? "none" : all.front();
  }

  cudaStream_t first_ = nullptr;
  cudaStream_t second_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

TEST_F(FakeCuda, WorkIsQueuedAndRunsInOrder) {
  EventSource gate;
  std::string order;
  hold(first_, gate);
  kernel(first_, [&] { order += "a"; });
  kernel(first_, [&] { order += "b"; });
  gate.complete();
  ASSERT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_EQ(order, "ab");
}

TEST_F(FakeCuda, AnEventThatWasNeverRecordedIsNotWaitedFor) {
  EXPECT_EQ(cudaStreamWaitEvent(first_, event_, 0), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
}

TEST_F(FakeCuda, AWaitIsForTheRecordingOfItsTime) {
  EventSource gate;
  ASSERT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(second_, event_, 0), cudaSuccess);
  hold(first_, gate);
  ASSERT_EQ(cudaEventRecord(event_, first_), cudaSuccess);

  EXPECT_EQ(cudaStreamSynchronize(second_), cudaSuccess);  // would hang if it waited for the second recording
  gate.complete();
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
}

TEST_F(FakeCuda, ADestroyedStreamEndsItsWork) {
  EventSource gate;
  EventSource ran;
  hold(first_, gate);
  kernel(first_, [&] { ran.complete(); });
  ASSERT_EQ(cudaStreamDestroy(first_), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event_, first_), cudaErrorInvalidResourceHandle);
  gate.complete();
  ran.event().wait();
}

TEST_F(FakeCuda, ACopyOutOfPageableMemoryTakesTheBytesAtOnce) {
  EventSource gate;
  std::byte* const memory = allocated(16);
  std::array<std::byte, 16> source{std::byte{1}};
  std::array<std::byte, 16> result{};
  hold(first_, gate);
  ASSERT_EQ(cudaMemcpyAsync(memory, source.data(), 16, cudaMemcpyDefault, first_), cudaSuccess);
  source[0] = std::byte{2};
  gate.complete();
  ASSERT_EQ(cudaMemcpyAsync(result.data(), memory, 16, cudaMemcpyDefault, first_), cudaSuccess);
  EXPECT_EQ(result[0], std::byte{1});  // the copy into pageable memory has returned, so it is done
}

TEST_F(FakeCuda, ACopyOutsideOfAnAllocationIsRefused) {
  std::byte* const memory = allocated(16);
  std::byte* const other = allocated(64);
  EXPECT_EQ(cudaMemcpyAsync(memory, other, 17, cudaMemcpyDefault, first_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(other + 49, memory, 16, cudaMemcpyDefault, first_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(other + 48, memory, 16, cudaMemcpyDefault, first_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_EQ(violation(), "none");
}

TEST_F(FakeCuda, FreshMemoryIsPoisoned) {
  EXPECT_EQ(allocated(16)[15], std::byte{0xff});
}

TEST_F(FakeCuda, MemoryIsWhatTheDeviceHas) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 65 * 1024), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&memory, 64 * 1024), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
}

TEST_F(FakeCuda, CatchesAWriteBehindAnAllocation) {
  std::byte* const memory = allocated(16);
  memory[16] = std::byte{0};
  ASSERT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(violation(), "bytes outside of device memory of 16 bytes were written");
}

TEST_F(FakeCuda, CatchesMemoryThatIsFreedUnderQueuedWork) {
  EventSource gate;
  std::byte* const memory = allocated(16);
  std::byte* const other = allocated(32);
  hold(first_, gate);
  ASSERT_EQ(cudaMemcpyAsync(other, memory, 16, cudaMemcpyDefault, first_), cudaSuccess);
  ASSERT_EQ(cudaFree(memory), cudaSuccess);
  gate.complete();
  ASSERT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_THAT(fake().violations(), testing::ElementsAre("device memory of 16 bytes was freed while queued work uses it",
                                                        "device memory of 16 bytes was used after it was freed"));
}

TEST_F(FakeCuda, CatchesAFreeOnAnotherStreamThanTheWork) {
  EventSource gate;
  std::byte* const memory = allocated(16);
  std::byte* const other = allocated(32);
  hold(first_, gate);
  ASSERT_EQ(cudaMemcpyAsync(other, memory, 16, cudaMemcpyDefault, first_), cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(memory, second_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
  gate.complete();
  EXPECT_EQ(violation(), "device memory of 16 bytes was freed while queued work uses it");
}

TEST_F(FakeCuda, AllowsAFreeBehindTheWorkOfTheSameStream) {
  std::byte* const memory = allocated(16);
  std::byte* const other = allocated(32);
  ASSERT_EQ(cudaMemcpyAsync(other, memory, 16, cudaMemcpyDefault, first_), cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(memory, first_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_EQ(violation(), "none");
}

TEST_F(FakeCuda, CatchesTheUseOfMemoryBeforeItsAllocationHasRun) {
  EventSource gate;
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  cudaMemPool_t pool = nullptr;
  void* memory = nullptr;
  std::byte* const other = allocated(32);
  ASSERT_EQ(cudaMemPoolCreate(&pool, &properties), cudaSuccess);
  hold(first_, gate);
  ASSERT_EQ(cudaMallocFromPoolAsync(&memory, 16, pool, first_), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(memory, other, 16, cudaMemcpyDefault, second_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
  gate.complete();
  EXPECT_EQ(violation(), "device memory of 16 bytes was used before its allocation had run");
}

TEST_F(FakeCuda, CatchesPagesThatAreUnpinnedUnderQueuedWork) {
  EventSource gate;
  std::array<std::byte, 16> host{};
  std::byte* const memory = allocated(16);
  ASSERT_EQ(cudaHostRegister(host.data(), host.size(), cudaHostRegisterPortable), cudaSuccess);
  hold(first_, gate);
  ASSERT_EQ(cudaMemcpyAsync(memory, host.data(), 16, cudaMemcpyDefault, first_), cudaSuccess);
  ASSERT_EQ(cudaHostUnregister(host.data()), cudaSuccess);
  gate.complete();
  EXPECT_EQ(violation(), "pinned memory of 16 bytes was unpinned while queued work uses it");
}

TEST_F(FakeCuda, FailsTheCallThatWasAskedFor) {
  fake().fail_call("cudaEventRecord", 2, cudaErrorInvalidValue);
  EXPECT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event_, first_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
  EXPECT_EQ(fake().calls("cudaEventRecord"), 3U);
}

TEST_F(FakeCuda, AFaultOfAKernelIsWhatEveryLaterCallReturns) {
  fake().fail_kernel(1, cudaErrorIllegalAddress);
  kernel(first_, [] {});
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaEventRecord(event_, second_), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
}

}  // namespace
}  // namespace strata::test
