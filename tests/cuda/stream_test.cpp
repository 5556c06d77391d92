// What a CUDA stream promises beyond the contract: its threads, and what it leaves to the device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "cuda/fake_device.h"
#include "support/event_failures.h"

namespace strata::test {
namespace {

class CudaStreams : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kBudgetBytes = std::uint64_t{1} << 20;

  Buffer host(unsigned char value) {
    Buffer buffer = pinned(device_.context(), host_budget_, kPageBytes);
    std::memset(buffer.data(), value, buffer.bytes());
    return buffer;
  }
  Buffer on_device() { return device_.allocate(kPageBytes, MemoryTag::Gather); }
  // `awaited` follows a kernel that `gate` holds up.
  void expect_left_to_the_device(const Event& awaited, EventSource& gate) {
    EventSource reached;
    const auto consumer = device_.create_stream("consumer");

    consumer->wait(awaited);
    consumer->launch([&] { reached.complete(); });
    const Event done = consumer->record();

    reached.event().wait();  // would hang if the consumer's thread waited for the kernel
    EXPECT_FALSE(done.ready());
    gate.complete();
    EXPECT_NO_THROW(done.wait());
  }

  FakeRuntime runtime_{{.seed = 11}};
  Budget host_budget_{"host of the test", kBudgetBytes};
  cuda::CudaDevice device_{{.index = 0, .budget_bytes = kBudgetBytes, .on_stream_thread = {}}};
};

TEST_F(CudaStreams, LaunchRunsOnTheStreamsOwnThreadWithItsStreamCurrent) {
  const auto stream = device_.create_stream("s");
  std::vector<std::pair<std::thread::id, cudaStream_t>> seen;

  for (int i = 0; i < 2; ++i) {
    stream->launch([&] { seen.emplace_back(std::this_thread::get_id(), cuda::current_stream()); });
  }
  stream->record().wait();

  EXPECT_EQ(seen.at(0), seen.at(1));
  EXPECT_NE(seen.at(0).first, std::this_thread::get_id());
  EXPECT_NE(seen.at(0).second, nullptr);
  EXPECT_EQ(cuda::current_stream(), nullptr);
}

TEST_F(CudaStreams, AnEventCompletesWhenTheKernelsOfTheLaunchHave) {
  EventSource gate;
  std::atomic<bool> ran = false;
  const auto stream = device_.create_stream("s");

  stream->launch([&, opened = gate.event()] {
    launch_kernel([&, opened] {
      opened.wait();
      ran = true;
    });
  });
  const Event done = stream->record();
  EXPECT_FALSE(done.ready());
  gate.complete();
  done.wait();

  EXPECT_TRUE(ran);
}

TEST_F(CudaStreams, AWaitForAnotherStreamIsLeftToTheDevice) {
  EventSource gate;
  const auto producer = device_.create_stream("producer");
  producer->launch([opened = gate.event()] { launch_kernel([opened] { opened.wait(); }); });
  expect_left_to_the_device(producer->record(), gate);
}

TEST_F(CudaStreams, AWaitForAllOfSeveralStreamsIsLeftToTheDevice) {
  EventSource gate;
  const auto first = device_.create_stream("first");
  const auto second = device_.create_stream("second");
  second->launch([opened = gate.event()] { launch_kernel([opened] { opened.wait(); }); });
  expect_left_to_the_device(when_all(std::array{first->record(), second->record()}), gate);
}

TEST_F(CudaStreams, OfAllThatAreWaitedForTheFirstFailureIsTheStreams) {
  const auto good = device_.create_stream("good");
  const auto bad = device_.create_stream("bad");
  const auto worse = device_.create_stream("worse");
  const auto consumer = device_.create_stream("consumer");
  bad->launch([] { throw std::runtime_error("bad"); });
  worse->launch([] { throw std::runtime_error("worse"); });

  consumer->wait(when_all(std::array{good->record(), bad->record(), worse->record()}));

  EXPECT_EQ(text_of(consumer->record().wait_noexcept()), "bad");
}

// CUDA takes a wait for an event that was not recorded yet for no wait at all.
TEST_F(CudaStreams, AWaitForAnEventThatWaitsForTheHostIsNotLost) {
  EventSource gate;
  gate.submit();
  const Buffer source = host(7);
  const Buffer result = host(0);
  const Buffer memory = on_device();
  const auto producer = device_.create_stream("producer");
  const auto consumer = device_.create_stream("consumer");

  producer->wait(gate.event());
  producer->copy(memory.data(), source.data(), kPageBytes);
  consumer->wait(producer->record());
  consumer->copy(result.data(), memory.data(), kPageBytes);
  const Event done = consumer->record();
  gate.complete();
  done.wait();

  EXPECT_EQ(result.data()[kPageBytes - 1], std::byte{7});
}

TEST_F(CudaStreams, AHostEventHoldsUpNeitherTheCallerNorAnotherStream) {
  EventSource gate;
  gate.submit();
  const auto gated = device_.create_stream("gated");
  const auto free = device_.create_stream("free");

  gated->wait(gate.event());
  const Event held = gated->record();
  EXPECT_NO_THROW(free->record().wait());

  EXPECT_FALSE(held.ready());
  gate.complete();
  EXPECT_NO_THROW(held.wait());
}

TEST_F(CudaStreams, CallbacksRunOnceTheirEventIsComplete) {
  const auto stream = device_.create_stream("s");
  const Event event = stream->record();
  EventSource called;
  event.on_complete([&](const std::exception_ptr& error) {
    EXPECT_TRUE(event.ready());
    EXPECT_EQ(error, nullptr);
    called.complete();
  });
  called.event().wait();
}

TEST_F(CudaStreams, ARetiredBufferLivesUntilTheKernelsBeforeItsEventHaveRun) {
  EventSource gate;
  const auto stream = device_.create_stream("s");
  stream->launch([opened = gate.event()] { launch_kernel([opened] { opened.wait(); }); });
  stream->retire(on_device(), stream->record());
  const Event after = stream->record();

  EXPECT_GT(device_.budget().used(), 0U);
  gate.complete();
  after.wait();
  EXPECT_EQ(device_.budget().used(), 0U);
}

TEST_F(CudaStreams, ABufferIsFreedInTimeAlsoWhileTheStreamsThreadIsBusy) {
  EventSource kernel_gate;
  EventSource launch_gate;
  const auto stream = device_.create_stream("s");
  stream->launch([opened = kernel_gate.event()] { launch_kernel([opened] { opened.wait(); }); });
  stream->retire(on_device(), stream->record());
  const Event after = stream->record();
  stream->launch([opened = launch_gate.event()] { opened.wait(); });

  kernel_gate.complete();
  after.wait();
  EXPECT_EQ(device_.budget().used(), 0U);
  launch_gate.complete();
}

TEST_F(CudaStreams, EventsAreUsedAgain) {
  const auto stream = device_.create_stream("s");
  for (int i = 0; i < 50; ++i) stream->record().wait();
  // The completing thread gives an event back after its waiter woke up, so a second one may be in use.
  EXPECT_LE(fake().calls("cudaEventCreateWithFlags"), 2U);
}

TEST_F(CudaStreams, DestructionWaitsForWorkThatNoEventFollows) {
  const Buffer result = host(0);
  const Buffer source = host(5);
  {
    const auto stream = device_.create_stream("s");
    stream->copy(result.data(), source.data(), kPageBytes);
  }
  EXPECT_EQ(result.data()[0], std::byte{5});
}

TEST_F(CudaStreams, StreamsAndBuffersAreMadeFromSeveralThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) {
        const auto stream = device_.create_stream("s");
        stream->retire(on_device(), stream->record());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(device_.budget().used(), 0U);
}

TEST(StreamThreads, TheHookRunsOnceOnEachThreadBeforeItsWork) {
  const FakeRuntime runtime;
  std::mutex mutex;
  std::vector<std::pair<std::thread::id, cudaStream_t>> hooked;
  cuda::CudaDevice device({.index = 0, .budget_bytes = 0, .on_stream_thread = [&](cudaStream_t stream) {
                             const std::lock_guard lock(mutex);
                             hooked.emplace_back(std::this_thread::get_id(), stream);
                           }});
  std::vector<std::pair<std::thread::id, cudaStream_t>> ran;

  for (int i = 0; i < 2; ++i) {
    const auto stream = device.create_stream("s");
    stream->launch([&] { ran.emplace_back(std::this_thread::get_id(), cuda::current_stream()); });
    stream->record().wait();
    EXPECT_EQ(hooked, ran);
  }
}

TEST(StreamThreads, AHookThatThrowsFailsTheStream) {
  const FakeRuntime runtime;
  cuda::CudaDevice device({.index = 0, .budget_bytes = 0, .on_stream_thread = [](cudaStream_t) {
                             throw std::runtime_error("no such stream");
                           }});
  const auto stream = device.create_stream("s");
  EXPECT_EQ(text_of(stream->record().wait_noexcept()), "no such stream");
}

TEST(StreamEnds, TheHookRunsAfterTheLastWorkAndBeforeTheStreamIsDestroyed) {
  const FakeRuntime runtime({.seed = 3});
  std::atomic<bool> ran = false;
  std::atomic<bool> thread_lives = true;
  cudaStream_t used = nullptr;
  std::vector<cudaStream_t> ended;
  cuda::CudaDevice device(
      {.index = 0, .budget_bytes = 0, .on_stream_thread = {}, .before_stream_ends = [&](cudaStream_t stream) {
         EXPECT_TRUE(ran);
         EXPECT_FALSE(thread_lives);
         EXPECT_EQ(fake().calls("cudaStreamDestroy"), 0U);
         EXPECT_EQ(fake().alive().streams, 2U);  // and that of allocate()
         ended.push_back(stream);
         return true;
       }});
  {
    const auto stream = device.create_stream("s");
    stream->launch([&] {
      // Destroyed with the thread, after the stream's last work.
      struct EndOfThread {
        std::atomic<bool>* lives = nullptr;
        ~EndOfThread() {
          if (lives != nullptr) *lives = false;
        }
      };
      thread_local EndOfThread end;
      end.lives = &thread_lives;
      used = cuda::current_stream();
      launch_kernel([&ran] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ran = true;
      });
    });
  }
  EXPECT_EQ(ended, std::vector<cudaStream_t>{used});
  EXPECT_EQ(fake().calls("cudaStreamDestroy"), 1U);
}

// A handle that somebody refers to must not come back as another stream's.
TEST(StreamEnds, AStreamThatIsStillReferredToIsNotDestroyed) {
  const FakeRuntime runtime;
  cudaStream_t kept = nullptr;
  {
    cuda::CudaDevice device(
        {.index = 0, .budget_bytes = 0, .on_stream_thread = {}, .before_stream_ends = [&](cudaStream_t stream) {
           kept = stream;
           return false;
         }});
    device.create_stream("s")->record().wait();
    EXPECT_EQ(fake().calls("cudaStreamDestroy"), 0U);
  }
  EXPECT_EQ(cudaStreamDestroy(kept), cudaSuccess);
}

TEST(StreamEnds, AnExceptionOfTheHookLeavesNoDestructorAndKeepsTheStream) {
  const FakeRuntime runtime;
  cudaStream_t kept = nullptr;
  cuda::CudaDevice device(
      {.index = 0, .budget_bytes = 0, .on_stream_thread = {}, .before_stream_ends = [&](cudaStream_t stream) -> bool {
         kept = stream;
         throw std::runtime_error("torch does not let go");
       }});
  EXPECT_NO_THROW(device.create_stream("s")->record().wait());
  EXPECT_EQ(fake().calls("cudaStreamDestroy"), 0U);
  EXPECT_EQ(cudaStreamDestroy(kept), cudaSuccess);
}

TEST(StreamEnds, TheHookRunsForAStreamThatFailed) {
  const FakeRuntime runtime;
  int ended = 0;
  cuda::CudaDevice device(
      {.index = 0, .budget_bytes = 0, .on_stream_thread = {}, .before_stream_ends = [&](cudaStream_t) {
         ++ended;
         return true;
       }});
  {
    const auto stream = device.create_stream("s");
    stream->launch([] { throw std::runtime_error("no such work"); });
    EXPECT_EQ(text_of(stream->record().wait_noexcept()), "no such work");
  }
  EXPECT_EQ(ended, 1);
}

TEST(StreamEnds, TheHookIsNotCalledOnceTheDeviceIsLost) {
  FakeRuntime runtime;
  runtime.lost = true;
  int ended = 0;
  cuda::CudaDevice device(
      {.index = 0, .budget_bytes = 0, .on_stream_thread = {}, .before_stream_ends = [&](cudaStream_t) {
         ++ended;
         return true;
       }});
  {
    const auto stream = device.create_stream("s");
    fake().fail_kernel(1, cudaErrorIllegalAddress);
    stream->launch([] { launch_kernel([] {}); });
    EXPECT_NE(stream->record().wait_noexcept(), nullptr);
  }
  EXPECT_EQ(ended, 0);
}

}  // namespace
}  // namespace strata::test
