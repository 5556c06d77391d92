// The simulated device of tests/support: the contract of all devices, and what its time promises.
#include "support/simulated_device.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <thread>
#include <vector>

#include "contract/device_contract.h"

namespace strata::test {
namespace {

constexpr std::size_t kBytes = 64;
// A copy takes 2 seconds to the device, 4 to the host and 1 within, and half a second before each.
constexpr SimulatedRates kRates{.latency_seconds = 0.5, .to_device = 32, .to_host = 16, .within = 64};

INSTANTIATE_TEST_SUITE_P(
    Simulated, DeviceContract,
    ::testing::Values(DeviceCase{
        .name = "WithRates",
        .make = [](std::uint64_t bytes) { return std::make_unique<SimulatedDevice>(bytes, kRates); },
        .host = [](Budget& budget, std::size_t bytes) { return allocate_host(budget, bytes, MemoryTag::Staging); }}),
    device_case_name);

class SimulatedStreams : public ::testing::Test {
 protected:
  // Each stream has memory of its own for each direction: nothing but time orders them.
  void to_device(Stream& stream) {
    stream.copy(part(memory_.data(), stream, 0), part(host_.data(), stream, 0), kBytes);
  }
  void to_host(Stream& stream) { stream.copy(part(host_.data(), stream, 1), part(memory_.data(), stream, 1), kBytes); }
  void spend(Stream& stream, double seconds) {
    stream.launch([this, seconds] { device_.spend(seconds); });
  }
  double end() {
    for (const auto& stream : {a_.get(), b_.get()}) stream->record().wait();
    return device_.seconds();
  }

  std::byte* part(std::byte* begin, const Stream& stream, std::size_t direction) const {
    return begin + (2 * direction + (&stream == b_.get() ? 1 : 0)) * kBytes;
  }

  std::array<std::byte, 4 * kBytes> host_{};
  SimulatedDevice device_{std::uint64_t{1} << 20, kRates};
  Buffer memory_ = device_.allocate(4 * kBytes, MemoryTag::Staging);
  std::unique_ptr<Stream> a_ = device_.create_stream("a");
  std::unique_ptr<Stream> b_ = device_.create_stream("b");
};

TEST_F(SimulatedStreams, TakeNoTimeForNothing) {
  EXPECT_EQ(end(), 0);
}

TEST_F(SimulatedStreams, TakeTheTimeOfTheDirectionForACopy) {
  to_device(*a_);
  EXPECT_EQ(end(), 2.5);
  to_host(*a_);
  EXPECT_EQ(end(), 7);
  a_->copy(memory_.data() + kBytes, memory_.data(), kBytes);  // also from the middle of a buffer
  EXPECT_EQ(end(), 8.5);
  a_->copy(host_.data() + kBytes, host_.data(), kBytes);
  EXPECT_EQ(end(), 8.5);
}

TEST_F(SimulatedStreams, TellDeviceMemoryOnlyWhileItIsAllocated) {
  Buffer other = device_.allocate(kBytes, MemoryTag::Staging);
  b_->copy(other.data(), memory_.data(), kBytes);
  EXPECT_EQ(end(), 1.5);
  b_->copy(host_.data(), other.data() + other.bytes() / 2, kBytes / 2);
  EXPECT_EQ(end(), 4);
}

TEST_F(SimulatedStreams, AddUpTheirOwnWork) {
  to_device(*a_);
  spend(*a_, 3);
  to_host(*a_);
  EXPECT_EQ(end(), 10);
}

TEST_F(SimulatedStreams, RunBesideEachOther) {
  spend(*a_, 3);
  spend(*b_, 5);
  EXPECT_EQ(end(), 5);
}

TEST_F(SimulatedStreams, CopyInBothDirectionsAtOnce) {
  to_device(*a_);
  to_host(*b_);
  EXPECT_EQ(end(), 4.5);
}

TEST_F(SimulatedStreams, TakeTurnsForOneDirection) {
  to_device(*a_);
  to_device(*b_);
  EXPECT_EQ(end(), 5);
}

// Stream a was made first and has really copied before b begins.
TEST_F(SimulatedStreams, GetADirectionInTheOrderInWhichTheyAreReady) {
  spend(*a_, 2);
  to_device(*a_);  // from 3.5 to 6
  spend(*a_, 10);
  std::thread([this] { a_->record().wait(); }).join();
  spend(*b_, 1);
  to_device(*b_);  // from 1 to 3.5
  EXPECT_EQ(end(), 16);
}

TEST_F(SimulatedStreams, GetADirectionInTheOrderOfTheirMakingWhenTheyAreReadyAtOnce) {
  to_device(*b_);  // from 2.5 to 5
  spend(*b_, 10);
  std::thread([this] { b_->record().wait(); }).join();
  to_device(*a_);  // from 0 to 2.5
  EXPECT_EQ(end(), 15);
}

TEST_F(SimulatedStreams, ComeAfterTheEventsThatTheyWaitFor) {
  spend(*a_, 3);
  const Event early = a_->record();
  spend(*a_, 10);
  b_->wait(early);
  spend(*b_, 8);
  EXPECT_EQ(end(), 13) << "b begins at 3";
  b_->wait(a_->record());
  spend(*b_, 1);
  EXPECT_EQ(end(), 14);
}

TEST_F(SimulatedStreams, ComeAfterAllPartsOfAnEvent) {
  spend(*a_, 3);
  const std::array<Event, 2> parts = {a_->record(), b_->record()};
  spend(*a_, 10);
  b_->wait(when_all(parts));
  spend(*b_, 8);
  EXPECT_EQ(end(), 13);
}

TEST_F(SimulatedStreams, ComeAfterWhatTheirCallerWaitedFor) {
  spend(*a_, 3);
  a_->record().wait();
  spend(*b_, 5);
  EXPECT_EQ(end(), 8);
}

TEST_F(SimulatedStreams, DoNotComeAfterWhatAnotherThreadWaitedFor) {
  spend(*a_, 3);
  std::thread([this] { a_->record().wait(); }).join();
  spend(*b_, 5);
  EXPECT_EQ(end(), 5);
}

TEST_F(SimulatedStreams, ComeAfterTheTimeThatTheirCallerSpent) {
  device_.spend(2);
  spend(*b_, 5);
  EXPECT_EQ(end(), 7);
}

TEST_F(SimulatedStreams, TakeHostEventsForComplete) {
  EventSource source;
  source.submit();
  spend(*a_, 3);
  b_->wait(source.event());
  spend(*b_, 1);
  a_->record().on_complete([&](const std::exception_ptr&) { source.complete(); });
  EXPECT_EQ(end(), 3);
}

TEST_F(SimulatedStreams, SkipTheTimeOfWhatAFailureSkips) {
  spend(*a_, 3);
  a_->wait(Event::failed(failure("cause")));
  spend(*a_, 10);
  to_device(*a_);
  EXPECT_THROW(a_->record().wait(), std::exception);
  EXPECT_EQ(device_.seconds(), 3);
}

TEST(SimulatedDevice, BeginsAtZeroWhateverItsCallerDidBefore) {
  for (int i = 0; i < 3; ++i) {
    SimulatedDevice device(std::uint64_t{1} << 20, kRates);
    const auto stream = device.create_stream("s");
    for (int n = 0; n < 2; ++n) {
      stream->launch([&device] { device.spend(1); });
      stream->record().wait();
    }
    EXPECT_EQ(device.seconds(), 2);
  }
}

}  // namespace
}  // namespace strata::test
