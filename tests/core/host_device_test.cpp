#include "core/host_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "contract/device_contract.h"
#include "core/bytes.h"
#include "core/error.h"

namespace strata::test {
namespace {

using namespace literals;

constexpr HostDeviceOptions kNormal{};
constexpr HostDeviceOptions kAdversarial{.mode = HostDeviceOptions::Mode::Adversarial, .seed = 5};

DeviceCase host_case(std::string name, HostDeviceOptions options) {
  return {.name = std::move(name),
          .make = [options](std::uint64_t bytes) { return std::make_unique<HostDevice>(bytes, options); },
          .host = [](Budget& budget, std::size_t bytes) { return allocate_host(budget, bytes, MemoryTag::Staging); }};
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceContract,
                         ::testing::Values(host_case("Normal", kNormal), host_case("Adversarial", kAdversarial)),
                         device_case_name);

// What the host device promises beyond the contract, in both modes.
class HostStreams : public ::testing::TestWithParam<HostDeviceOptions::Mode> {
 protected:
  HostDevice device_{1_MiB, {.mode = GetParam(), .seed = 9}};
};

INSTANTIATE_TEST_SUITE_P(Modes, HostStreams,
                         ::testing::Values(HostDeviceOptions::Mode::Normal, HostDeviceOptions::Mode::Adversarial));

TEST_P(HostStreams, LaunchRunsOnTheStreamsOwnThread) {
  const auto stream = device_.create_stream("s");
  std::vector<std::thread::id> ids;

  for (int i = 0; i < 2; ++i) stream->launch([&] { ids.push_back(std::this_thread::get_id()); });
  stream->record().wait();

  EXPECT_NE(ids.at(0), std::this_thread::get_id());
  EXPECT_EQ(ids.at(0), ids.at(1));
}

TEST_P(HostStreams, LaunchReturnsBeforeItsWorkRuns) {
  const auto stream = device_.create_stream("s");
  EventSource gate;
  bool ran = false;

  stream->launch([&, opened = gate.event()] {
    opened.wait();
    ran = true;
  });
  const Event done = stream->record();
  EXPECT_FALSE(done.ready());
  gate.complete();
  done.wait();

  EXPECT_TRUE(ran);
}

TEST_P(HostStreams, AnExceptionFromALaunchFailsLaterEventsAndSkipsLaterWork) {
  const auto stream = device_.create_stream("s");
  bool later = false;

  stream->launch([] { throw CommError("rank 3 is gone"); });
  stream->launch([] { throw CommError("a consequence"); });
  stream->launch([&] { later = true; });
  const Event event = stream->record();

  try {
    event.wait();
    FAIL();
  } catch (const CommError& error) {
    EXPECT_STREQ(error.what(), "rank 3 is gone");
  }
  EXPECT_FALSE(later);
}

TEST_P(HostStreams, AFailedStreamStillWaitsForOthersBeforeItsEventsFail) {
  // Whoever sees the failure frees memory; work that the stream waited for may still be using it.
  EventSource other_work;
  other_work.submit();
  const auto stream = device_.create_stream("s");
  stream->launch([] { throw std::runtime_error("x"); });

  stream->wait(other_work.event());
  const Event event = stream->record();

  EXPECT_FALSE(event.ready());
  other_work.complete();
  EXPECT_THROW(event.wait(), std::runtime_error);
}

TEST_P(HostStreams, ALaunchLetsGoOfWhatItHoldsBeforeTheNextEvent) {
  const auto stream = device_.create_stream("s");
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;

  stream->launch([held = std::move(held)] {});
  stream->record().wait();

  EXPECT_TRUE(watch.expired());
}

TEST_P(HostStreams, AFailureThatNoEventCarriedIsLogged) {
  testing::internal::CaptureStderr();
  {
    const auto stream = device_.create_stream("lost");
    stream->launch([] { throw std::runtime_error("nobody looked"); });
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, testing::HasSubstr("stream lost failed"));
  EXPECT_THAT(text, testing::HasSubstr("nobody looked"));
}

TEST_P(HostStreams, DestructionWaitsForTheEventsOfRetiredBuffers) {
  EventSource last_use;
  last_use.submit();
  std::atomic<bool> destroyed{false};
  auto stream = device_.create_stream("s");
  stream->retire(device_.allocate(kPageBytes, MemoryTag::Gather), last_use.event());

  std::thread destroyer([&] {
    stream.reset();
    destroyed = true;
  });
  EXPECT_FALSE(destroyed);
  EXPECT_GT(device_.budget().used(), 0U);
  last_use.complete();
  destroyer.join();

  EXPECT_EQ(device_.budget().used(), 0U);
}

TEST_P(HostStreams, StreamsAndBuffersAreMadeFromSeveralThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10; ++i) {
        const auto stream = device_.create_stream("s");
        stream->retire(device_.allocate(kPageBytes, MemoryTag::Gather), stream->record());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(device_.budget().used(), 0U);
}

TEST(HostDevice, FreshMemoryIsZeroInNormalMode) {
  HostDevice device(1_MiB);
  const Buffer buffer = device.allocate(kPageBytes, MemoryTag::Gather);
  for (const std::byte byte : buffer.span()) ASSERT_EQ(byte, std::byte{0});
}

TEST(HostDevice, WaitBlocksTheCallerUntilTheEventIsSubmitted) {
  HostDevice device(1_MiB);
  const auto stream = device.create_stream("s");
  EventSource source;
  const Event event = source.event();
  std::atomic<bool> submitted{false};

  std::thread caller([&] {
    stream->wait(event);
    EXPECT_TRUE(submitted);
  });
  submitted = true;
  source.submit();
  caller.join();
  source.complete();

  EXPECT_NO_THROW(stream->record().wait());
}

TEST(AdversarialHost, AWaitForAnEventThatNobodySubmittedFailsAtOnce) {
  HostDevice device(1_MiB, kAdversarial);
  const auto stream = device.create_stream("s");
  EventSource source;

  EXPECT_THROW(stream->wait(source.event()), ContractViolation);
  source.submit();
  EXPECT_NO_THROW(stream->wait(source.event()));
  source.complete();
}

TEST(AdversarialHost, FreshMemoryIsNan) {
  HostDevice device(1_MiB, kAdversarial);
  const Buffer buffer = device.allocate(kPageBytes, MemoryTag::Gather);

  for (const std::byte byte : buffer.span()) ASSERT_EQ(byte, std::byte{0xff});
  EXPECT_TRUE(std::isnan(*reinterpret_cast<const float*>(buffer.data())));
}

}  // namespace
}  // namespace strata::test
