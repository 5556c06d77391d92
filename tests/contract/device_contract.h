// What every Device and Stream promises, as one suite. A new device joins with a DeviceCase and
//   INSTANTIATE_TEST_SUITE_P(Cuda, DeviceContract, ::testing::Values(...), device_case_name);
// Host memory is reached only through DeviceCase::host, device memory only through copies, so that the suite runs on
// devices whose memory the host cannot touch.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/device.h"
#include "core/error.h"
#include "support/event_failures.h"

namespace strata::test {

struct DeviceCase {
  std::string name;
  // A device whose budget is `budget_bytes`.
  std::function<std::unique_ptr<Device>(std::uint64_t budget_bytes)> make;
  // Host memory that the device can copy to and from (pinned for CUDA).
  std::function<Buffer(Budget& budget, std::size_t bytes)> host;
};

inline void PrintTo(const DeviceCase& device_case, std::ostream* out) {
  *out << device_case.name;
}
inline std::string device_case_name(const ::testing::TestParamInfo<DeviceCase>& info) {
  return info.param.name;
}

class DeviceContract : public ::testing::TestWithParam<DeviceCase> {
 protected:
  static constexpr std::uint64_t kBudgetBytes = std::uint64_t{16} << 20;

  Buffer host(std::size_t bytes) { return GetParam().host(host_budget_, bytes); }
  Buffer on_device(std::size_t bytes) { return device_->allocate(bytes, MemoryTag::Staging); }

  Buffer host_filled(std::size_t bytes, unsigned char value) {
    Buffer buffer = host(bytes);
    std::memset(buffer.data(), value, bytes);
    return buffer;
  }

  static bool holds(const Buffer& buffer, unsigned char value) {
    for (const std::byte byte : buffer.span()) {
      if (byte != std::byte{value}) return false;
    }
    return true;
  }

  static Event failed(const std::string& cause) { return Event::failed(failure(cause)); }
  static std::string cause_of(const Event& event) { return text_of(event.wait_noexcept()); }

  // Declared in this order: streams in the tests go first, then buffers of the tests, then the device.
  Budget host_budget_{"host of the test", kBudgetBytes};
  std::unique_ptr<Device> device_ = GetParam().make(kBudgetBytes);
};

TEST_P(DeviceContract, AllocationsArePageAlignedDeviceMemoryOfTheSizeAsked) {
  const Buffer buffer = on_device(5000);

  EXPECT_EQ(buffer.bytes(), 5000U);
  EXPECT_EQ(buffer.space(), MemorySpace::Device);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % kPageBytes, 0U);
}

TEST_P(DeviceContract, AnAllocationIsPaidForUntilItIsFreed) {
  {
    const Buffer buffer = device_->allocate(5000, MemoryTag::Gather);
    EXPECT_GE(device_->budget().used(MemoryTag::Gather), 5000U);
  }
  EXPECT_EQ(device_->budget().used(), 0U);
}

TEST_P(DeviceContract, AnAllocationOverTheBudgetIsRefusedAndChangesNothing) {
  const Buffer most = on_device(kBudgetBytes / 2);
  const std::uint64_t used = device_->budget().used();

  EXPECT_THROW(on_device(kBudgetBytes), OutOfBudget);
  EXPECT_EQ(device_->budget().used(), used);
}

TEST_P(DeviceContract, AnAllocationOfNothingIsEmpty) {
  EXPECT_FALSE(on_device(0));
}

TEST_P(DeviceContract, CopiesRoundTripThroughDeviceMemory) {
  const auto stream = device_->create_stream("copy");
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{7}, kPageBytes, (std::size_t{1} << 20) + 3}) {
    SCOPED_TRACE(std::to_string(bytes) + " bytes");
    const Buffer source = host(bytes);
    for (std::size_t i = 0; i < bytes; ++i) source.data()[i] = static_cast<std::byte>(i * 31 + 1);
    const Buffer first = on_device(bytes + 3);
    const Buffer second = on_device(bytes);
    const Buffer back = host_filled(bytes, 0);

    stream->copy(first.data() + 3, source.data(), bytes);
    stream->copy(second.data(), first.data() + 3, bytes);
    stream->copy(back.data(), second.data(), bytes);
    stream->record().wait();

    EXPECT_EQ(std::memcmp(back.data(), source.data(), bytes), 0);
  }
}

TEST_P(DeviceContract, ACopyOfNothingIsAllowed) {
  const auto stream = device_->create_stream("copy");
  stream->copy(nullptr, nullptr, 0);
  EXPECT_NO_THROW(stream->record().wait());
}

TEST_P(DeviceContract, LaunchesOfOneStreamRunInTheOrderOfTheCalls) {
  std::vector<int> order;
  const auto stream = device_->create_stream("order");

  for (int i = 0; i < 20; ++i) stream->launch([&order, i] { order.push_back(i); });
  stream->record().wait();

  ASSERT_EQ(order.size(), 20U);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST_P(DeviceContract, CopiesOfOneStreamRunInTheOrderOfTheCalls) {
  const Buffer memory = on_device(kPageBytes);
  std::vector<Buffer> sources;
  std::vector<Buffer> results;
  const auto stream = device_->create_stream("order");
  for (unsigned char value = 1; value <= 8; ++value) {
    sources.push_back(host_filled(kPageBytes, value));
    results.push_back(host_filled(kPageBytes, 0));
    stream->copy(memory.data(), sources.back().data(), kPageBytes);
    stream->copy(results.back().data(), memory.data(), kPageBytes);
  }

  stream->record().wait();

  for (unsigned char value = 1; value <= 8; ++value) EXPECT_TRUE(holds(results[value - 1U], value)) << int{value};
}

TEST_P(DeviceContract, ARecordedEventIsSubmitted) {
  const auto stream = device_->create_stream("record");
  EXPECT_TRUE(stream->record().submitted());
}

TEST_P(DeviceContract, AnEventRecordedOnAnIdleStreamCompletes) {
  const auto stream = device_->create_stream("record");
  EXPECT_NO_THROW(stream->record().wait());
}

TEST_P(DeviceContract, WorkAfterAWaitRunsAfterTheEvent) {
  EventSource gate;
  gate.submit();
  const Buffer source = host_filled(kPageBytes, 1);
  const Buffer result = host_filled(kPageBytes, 0);
  const auto stream = device_->create_stream("gated");

  stream->wait(gate.event());
  stream->copy(result.data(), source.data(), kPageBytes);
  const Event done = stream->record();
  EXPECT_FALSE(done.ready());
  std::memset(source.data(), 2, kPageBytes);  // the copy has not begun, so this is what it must find
  gate.complete();
  done.wait();

  EXPECT_TRUE(holds(result, 2));
}

TEST_P(DeviceContract, AnEventRecordedBeforeAWaitDoesNotWait) {
  EventSource gate;
  gate.submit();
  const auto stream = device_->create_stream("gated");

  const Event before = stream->record();
  stream->wait(gate.event());

  EXPECT_NO_THROW(before.wait());
  gate.complete();
}

TEST_P(DeviceContract, WaitOrdersTwoStreams) {
  const Buffer memory = on_device(kPageBytes);
  const Buffer result = host(kPageBytes);
  std::vector<Buffer> sources;
  const auto writer = device_->create_stream("writer");
  const auto reader = device_->create_stream("reader");
  for (unsigned char value = 1; value <= 20; ++value) {
    sources.push_back(host_filled(kPageBytes, value));
    writer->copy(memory.data(), sources.back().data(), kPageBytes);
    reader->wait(writer->record());
    reader->copy(result.data(), memory.data(), kPageBytes);
    const Event read = reader->record();
    writer->wait(read);

    read.wait();
    ASSERT_TRUE(holds(result, value)) << int{value};
  }
}

TEST_P(DeviceContract, WaitsForOneEventOnSeveralStreamsAllPass) {
  const auto producer = device_->create_stream("producer");
  const Event event = producer->record();
  for (int i = 0; i < 3; ++i) {
    const auto consumer = device_->create_stream("consumer");
    consumer->wait(event);
    EXPECT_NO_THROW(consumer->record().wait());
  }
}

TEST_P(DeviceContract, AWaitForAFailedEventFailsLaterEventsWithTheCause) {
  const auto stream = device_->create_stream("failing");

  const Event before = stream->record();
  stream->wait(failed("first cause"));
  const Event after = stream->record();

  EXPECT_EQ(cause_of(before), "success");
  EXPECT_EQ(cause_of(after), "first cause");
}

TEST_P(DeviceContract, AFailedStreamKeepsTheFirstCause) {
  const auto stream = device_->create_stream("failing");

  stream->wait(failed("first cause"));
  stream->wait(failed("second cause"));

  EXPECT_EQ(cause_of(stream->record()), "first cause");
  EXPECT_EQ(cause_of(stream->record()), "first cause");
}

TEST_P(DeviceContract, WorkAfterAFailureIsSkipped) {
  const Buffer source = host_filled(kPageBytes, 1);
  const Buffer result = host_filled(kPageBytes, 0);
  const auto stream = device_->create_stream("failing");

  stream->wait(failed("cause"));
  stream->copy(result.data(), source.data(), kPageBytes);
  stream->record().wait_noexcept();

  EXPECT_TRUE(holds(result, 0));
}

TEST_P(DeviceContract, AFailureTravelsToAStreamThatWaits) {
  const auto first = device_->create_stream("first");
  const auto second = device_->create_stream("second");
  first->wait(failed("cause"));

  second->wait(first->record());

  EXPECT_EQ(cause_of(second->record()), "cause");
}

TEST_P(DeviceContract, AFailureDoesNotTouchOtherStreams) {
  const auto failing = device_->create_stream("failing");
  const auto healthy = device_->create_stream("healthy");

  failing->wait(failed("cause"));
  failing->record().wait_noexcept();

  EXPECT_EQ(cause_of(healthy->record()), "success");
}

TEST_P(DeviceContract, ARetiredBufferLivesUntilItsEventCompletes) {
  EventSource last_use;
  last_use.submit();
  const auto stream = device_->create_stream("retire");
  Buffer buffer = on_device(kPageBytes);

  stream->retire(std::move(buffer), last_use.event());
  stream->record().wait();

  EXPECT_GT(device_->budget().used(), 0U);
  last_use.complete();
}

TEST_P(DeviceContract, ABufferRetiredByAnEarlierEventOfTheStreamIsFreeWhenALaterEventCompletes) {
  const auto stream = device_->create_stream("retire");
  for (int i = 0; i < 10; ++i) {
    Buffer buffer = on_device(kPageBytes);
    stream->launch([] {});
    stream->retire(std::move(buffer), stream->record());
    stream->record().wait();
    ASSERT_EQ(device_->budget().used(), 0U);
  }
}

TEST_P(DeviceContract, ARetiredBufferDoesNotHoldUpTheStream) {
  EventSource last_use;
  last_use.submit();
  const auto stream = device_->create_stream("retire");

  stream->retire(on_device(kPageBytes), last_use.event());

  EXPECT_NO_THROW(stream->record().wait());  // would hang if the stream waited for the event
  last_use.complete();
}

TEST_P(DeviceContract, ARetiredBufferIsFreedAlsoWhenItsEventFails) {
  {
    const auto stream = device_->create_stream("retire");
    stream->retire(on_device(kPageBytes), failed("cause"));
    EXPECT_EQ(cause_of(stream->record()), "success") << "retire is no wait: it does not pass failures on";
  }
  EXPECT_EQ(device_->budget().used(), 0U);
}

TEST_P(DeviceContract, DestroyingAStreamRunsWhatIsQueuedAndFreesWhatIsRetired) {
  const Buffer source = host_filled(kPageBytes, 7);
  const Buffer result = host_filled(kPageBytes, 0);
  Event last;
  {
    const auto stream = device_->create_stream("short-lived");
    for (int i = 0; i < 10; ++i) stream->launch([] {});
    stream->copy(result.data(), source.data(), kPageBytes);
    last = stream->record();
    stream->retire(on_device(kPageBytes), last);
  }
  EXPECT_TRUE(last.ready());
  EXPECT_TRUE(holds(result, 7));
  EXPECT_EQ(device_->budget().used(), 0U);
}

TEST_P(DeviceContract, AnEventOutlivesItsStream) {
  Event event;
  {
    const auto stream = device_->create_stream("short-lived");
    event = stream->record();
  }
  EXPECT_NO_THROW(event.wait());
}

}  // namespace strata::test
