// Failures of work on CUDA streams: what they stop, whom they reach, and what is still waited for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "core/error.h"
#include "cuda/fake_device.h"
#include "support/event_failures.h"

namespace strata::test {
namespace {

class CudaFailures : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kBudgetBytes = std::uint64_t{1} << 20;

  static std::string cause_of(const Event& event) { return text_of(event.wait_noexcept()); }
  static void launch_gated_kernel(Stream& stream, const EventSource& gate) {
    stream.launch([opened = gate.event()] { launch_kernel([opened] { opened.wait(); }); });
  }
  // Until `calls` calls of a function of the runtime have been entered.
  static void wait_for_calls(const std::string& call, std::uint64_t calls) {
    while (fake().calls(call) < calls) std::this_thread::yield();
  }
  // `event` is of a stream whose wait CUDA refused, and which `gate` holds up all the same.
  void expect_fails_once_open(const Event& event, EventSource& gate) {
    const auto other = device_.create_stream("other");
    for (int i = 0; i < 50; ++i) other->record().wait();  // time for an event that does not wait to complete

    EXPECT_FALSE(event.ready());
    gate.complete();
    EXPECT_THAT(cause_of(event), testing::HasSubstr("cudaStreamWaitEvent failed: cudaErrorInvalidValue"));
  }

  FakeRuntime runtime_{{.seed = 12}};
  cuda::CudaDevice device_{{.index = 0, .budget_bytes = kBudgetBytes, .on_stream_thread = {}}};
};

TEST_F(CudaFailures, AnExceptionFromALaunchFailsLaterEventsAndSkipsLaterWork) {
  const auto stream = device_.create_stream("s");
  bool later = false;

  const Event before = stream->record();
  stream->launch([] { throw std::runtime_error("first"); });
  stream->launch([&] { later = true; });

  EXPECT_EQ(cause_of(stream->record()), "first");
  EXPECT_EQ(cause_of(before), "success");
  EXPECT_FALSE(later);
}

TEST_F(CudaFailures, AFailedEventCompletesOnlyWhenTheKernelsBeforeItHave) {
  // Whoever sees the failure frees memory that they may be using.
  EventSource gate;
  const auto stream = device_.create_stream("s");
  launch_gated_kernel(*stream, gate);
  stream->launch([] { throw std::runtime_error("x"); });
  const Event event = stream->record();
  wait_for_calls("cudaEventSynchronize", 1);

  EXPECT_FALSE(event.ready());
  gate.complete();
  EXPECT_EQ(cause_of(event), "x");
}

TEST_F(CudaFailures, AFailedStreamStillWaitsForOtherStreams) {
  EventSource gate;
  const auto other = device_.create_stream("other");
  const auto stream = device_.create_stream("s");
  launch_gated_kernel(*other, gate);
  stream->launch([] { throw std::runtime_error("x"); });
  stream->wait(other->record());
  const Event event = stream->record();
  wait_for_calls("cudaEventSynchronize", 2);

  EXPECT_FALSE(event.ready());
  gate.complete();
  EXPECT_EQ(cause_of(event), "x");
}

TEST_F(CudaFailures, AStreamThatWaitsForAFailedOneSkipsItsWork) {
  const auto failing = device_.create_stream("failing");
  const auto dependent = device_.create_stream("dependent");
  bool ran = false;

  failing->launch([] { throw std::runtime_error("x"); });
  dependent->wait(failing->record());
  dependent->launch([&] { ran = true; });

  EXPECT_EQ(cause_of(dependent->record()), "x");
  EXPECT_FALSE(ran);
}

TEST_F(CudaFailures, AFailureThatShowsLateReachesStreamsThatHadWaitedAndTheirDependents) {
  EventSource gate;
  const auto producer = device_.create_stream("producer");
  const auto dependent = device_.create_stream("dependent");
  const auto third = device_.create_stream("third");
  fake().fail_call("cudaEventSynchronize", 1, cudaErrorUnknown);

  launch_gated_kernel(*producer, gate);
  const Event produced = producer->record();
  wait_for_calls("cudaEventSynchronize", 1);  // the producer's: nothing else has been recorded
  const Event unrelated = dependent->record();
  dependent->wait(produced);
  const Event after = dependent->record();
  third->wait(after);
  const Event last = third->record();
  gate.complete();

  const std::string cause = cause_of(produced);
  EXPECT_THAT(cause, testing::HasSubstr("cudaEventSynchronize failed: cudaErrorUnknown"));
  EXPECT_EQ(cause_of(unrelated), "success");
  EXPECT_EQ(cause_of(after), cause);
  EXPECT_EQ(cause_of(last), cause);
}

TEST_F(CudaFailures, AfterALateFailureTheStreamSkipsItsWork) {
  const auto stream = device_.create_stream("s");
  fake().fail_call("cudaEventSynchronize", 1, cudaErrorUnknown);
  bool ran = false;

  const std::string cause = cause_of(stream->record());
  stream->launch([&] { ran = true; });

  EXPECT_THAT(cause, testing::HasSubstr("cudaErrorUnknown"));
  EXPECT_EQ(cause_of(stream->record()), cause);
  EXPECT_FALSE(ran);
}

TEST_F(CudaFailures, ACopyThatCudaRefusesFailsItsStreamAlone) {
  const auto stream = device_.create_stream("s");
  const auto healthy = device_.create_stream("healthy");
  const Buffer small = device_.allocate(kPageBytes, MemoryTag::Gather);
  const Buffer large = device_.allocate(2 * kPageBytes, MemoryTag::Gather);

  stream->copy(small.data(), large.data(), 2 * kPageBytes);

  EXPECT_THAT(cause_of(stream->record()), testing::HasSubstr("cudaMemcpyAsync failed: cudaErrorInvalidValue"));
  EXPECT_EQ(cause_of(healthy->record()), "success");
}

TEST_F(CudaFailures, ARecordingThatCudaRefusesFailsAfterTheWorkBeforeIt) {
  EventSource gate;
  const auto stream = device_.create_stream("s");
  fake().fail_call("cudaEventRecord", 1, cudaErrorInvalidValue);
  launch_gated_kernel(*stream, gate);
  const Event refused = stream->record();
  const Event later = stream->record();
  wait_for_calls("cudaStreamSynchronize", 1);

  EXPECT_FALSE(refused.ready());
  gate.complete();
  EXPECT_THAT(cause_of(refused), testing::HasSubstr("cudaEventRecord failed: cudaErrorInvalidValue"));
  EXPECT_EQ(cause_of(later), cause_of(refused));
}

TEST_F(CudaFailures, AWaitThatCudaRefusesFailsTheStreamWhenTheEventIsComplete) {
  EventSource gate;
  const auto producer = device_.create_stream("producer");
  const auto stream = device_.create_stream("s");
  fake().fail_call("cudaStreamWaitEvent", 1, cudaErrorInvalidValue);
  launch_gated_kernel(*producer, gate);
  const Event produced = producer->record();
  stream->wait(produced);
  const Event event = stream->record();
  wait_for_calls("cudaStreamWaitEvent", 1);
  expect_fails_once_open(event, gate);
  EXPECT_EQ(cause_of(produced), "success");
}

TEST_F(CudaFailures, AWaitForSeveralThatCudaRefusesForOneWaitsForTheOthers) {
  EventSource gate;
  const auto quick = device_.create_stream("quick");
  const auto slow = device_.create_stream("slow");
  const auto stream = device_.create_stream("s");
  fake().fail_call("cudaStreamWaitEvent", 1, cudaErrorInvalidValue);
  launch_gated_kernel(*slow, gate);
  stream->wait(when_all(std::array{quick->record(), slow->record()}));
  const Event event = stream->record();
  wait_for_calls("cudaStreamWaitEvent", 2);
  expect_fails_once_open(event, gate);
}

TEST_F(CudaFailures, AKernelThatFaultsLosesTheDeviceForEveryone) {
  runtime_.lost = true;
  const auto stream = device_.create_stream("s");
  const auto other = device_.create_stream("other");
  const Buffer memory = device_.allocate(kPageBytes, MemoryTag::Gather);
  fake().fail_kernel(1, cudaErrorIllegalAddress);

  stream->launch([] { launch_kernel([] {}); });
  const std::string cause = cause_of(stream->record());

  EXPECT_THAT(cause, testing::HasSubstr("cudaEventSynchronize failed: cudaErrorIllegalAddress"));
  EXPECT_EQ(cause_of(stream->record()), cause);
  EXPECT_EQ(cause_of(other->record()), cause);
  try {
    device_.allocate(kPageBytes, MemoryTag::Gather);
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_EQ(error.what(), cause);
  }
  EXPECT_THROW(device_.create_stream("late"), DeviceError);
  EXPECT_EQ(device_.budget().used(), kPageBytes);
}

TEST_F(CudaFailures, AfterTheDeviceIsLostNothingHangsAndNothingThrowsOnTheWayOut) {
  runtime_.lost = true;
  EventSource gate;
  const auto producer = device_.create_stream("producer");
  const auto consumer = device_.create_stream("consumer");
  fake().fail_kernel(1, cudaErrorLaunchFailure);
  launch_gated_kernel(*producer, gate);
  producer->retire(device_.allocate(kPageBytes, MemoryTag::Gather), producer->record());
  consumer->wait(producer->record());
  const Event last = consumer->record();
  gate.complete();

  EXPECT_NE(last.wait_noexcept(), nullptr);
}

TEST_F(CudaFailures, AStreamThatCannotBeMadeLeavesNothingBehind) {
  fake().fail_call("cudaStreamCreateWithFlags", 1, cudaErrorMemoryAllocation);
  EXPECT_THROW(device_.create_stream("s"), DeviceError);
  EXPECT_NO_THROW(device_.create_stream("s"));
}

}  // namespace
}  // namespace strata::test
