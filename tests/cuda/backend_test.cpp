#include "cuda/cuda_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "cuda/fake_device.h"
#include "cuda/torch_stand_in.h"

namespace strata::test {
namespace {

std::string refusal(const cuda::BackendOptions& options) {
  try {
    cuda::open_backend(options);
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "none";
}

TEST(CudaBackend, CountsDevices) {
  const FakeRuntime runtime({.devices = 3});
  std::string why;
  EXPECT_EQ(cuda::count_devices(why), 3);
  EXPECT_EQ(why, "");
}

TEST(CudaBackend, CountingMakesNoContext) {
  const FakeRuntime runtime({.devices = 3});
  std::string why;
  cuda::count_devices(why);
  EXPECT_THAT(fake().contexts(), testing::IsEmpty());
}

TEST(CudaBackend, CountsNoDeviceThatIsTooOld) {
  const FakeRuntime runtime({.devices = 2, .major = 6, .minor = 1});
  std::string why;
  EXPECT_EQ(cuda::count_devices(why), 0);
  EXPECT_EQ(why, "Fake GPU has compute capability 6.1; 8.0 is the least that works");
}

TEST(CudaBackend, CountsUpToTheFirstThatIsTooOldAndSaysWhy) {
  const FakeRuntime runtime({.devices = 3, .old_device = 1});
  std::string why;
  EXPECT_EQ(cuda::count_devices(why), 1);
  EXPECT_EQ(why, "Fake GPU has compute capability 6.1; 8.0 is the least that works");
}

TEST(CudaBackend, SaysWhyThereIsNoDevice) {
  const FakeRuntime runtime({.devices = 0});
  std::string why;
  EXPECT_EQ(cuda::count_devices(why), 0);
  EXPECT_THAT(why, testing::HasSubstr("no CUDA-capable device is detected"));
}

TEST(CudaBackend, TellsWhatTheDriverSays) {
  const FakeRuntime runtime({.devices = 2, .memory_bytes = 1 << 20, .major = 9, .minor = 0, .numa_node = 1});
  const auto backend = cuda::open_backend({.device = 1, .budget_bytes = 1 << 20});
  const Buffer taken = backend->device().allocate(kPageBytes, MemoryTag::Gather);

  const cuda::DeviceFacts facts = backend->facts();

  EXPECT_EQ(facts.index, 1);
  EXPECT_EQ(facts.name, "Fake GPU");
  EXPECT_EQ(facts.pci_bus_id, "ffff:ff:1f.1") << "as /sys writes it";
  EXPECT_EQ(facts.major, 9);
  EXPECT_EQ(facts.minor, 0);
  EXPECT_EQ(facts.multiprocessors, 4U);
  EXPECT_EQ(facts.total_bytes, 1U << 20);
  EXPECT_EQ(facts.free_bytes, (1U << 20) - kPageBytes);
  EXPECT_EQ(facts.memory_bytes_per_second, 64e9);  // 1 GHz, 256 bits, two transfers a clock
  EXPECT_EQ(facts.driver_version, 13000);
  EXPECT_EQ(facts.runtime_version, CUDART_VERSION);
  EXPECT_EQ(facts.numa_node, 1);
}

TEST(CudaBackend, DoesNotKnowTheNodeOfASlotThatTheSystemDoesNotKnow) {
  const FakeRuntime runtime({.numa_node = -1});
  const auto backend = cuda::open_backend({.device = 0, .budget_bytes = 0});
  EXPECT_EQ(backend->facts().numa_node, -1);
}

TEST(CudaBackend, RefusesAGpuWithoutKernels) {
  const FakeRuntime runtime({.major = 7, .minor = 5});
  EXPECT_EQ(refusal({.device = 0, .budget_bytes = 0}),
            "Fake GPU has compute capability 7.5; 8.0 is the least that works");
}

TEST(CudaBackend, RefusesADeviceThatIsNotThere) {
  const FakeRuntime runtime;
  EXPECT_THAT(refusal({.device = 5, .budget_bytes = 0}), testing::HasSubstr("cudaErrorInvalidDevice"));
}

TEST(CudaBackend, PinsHostMemory) {
  const FakeRuntime runtime;
  Budget budget("host of the test", 1 << 20);
  const Buffer memory = allocate_host(budget, kPageBytes, MemoryTag::Staging);
  const auto backend = cuda::open_backend({.device = 0, .budget_bytes = 0});
  const auto region = backend->pin(memory.span());
  EXPECT_EQ(fake().alive().pinned_regions, 1U);
}

// What torch was asked to do, in order. Of one thread at a time.
std::vector<std::string>& asked() {
  static std::vector<std::string> calls;
  return calls;
}
constexpr cuda::TorchPart kTorch{
    .start = [](int device) { asked().push_back("start " + std::to_string(device)); },
    .on_stream_thread = [](int device, cudaStream_t) { asked().push_back("thread of " + std::to_string(device)); },
    .before_stream_ends =
        [](int device, cudaStream_t) {
          asked().push_back("end of a stream of " + std::to_string(device));
          return true;
        },
    .limit =
        [](int device, std::optional<std::uint64_t> bytes) {
          asked().push_back("limit of " + std::to_string(device) + " " + (bytes ? std::to_string(*bytes) : "none"));
        }};

TEST(CudaBackend, StartsTorchAndLetsItGoOfEachStream) {
  const FakeRuntime runtime({.devices = 2});
  const TorchStandIn torch(kTorch);
  asked().clear();
  {
    const auto backend = cuda::open_backend({.device = 1, .budget_bytes = 0});
    backend->device().create_stream("s")->record().wait();
  }
  EXPECT_THAT(asked(), testing::ElementsAre("start 1", "thread of 1", "end of a stream of 1"));
}

TEST(CudaBackend, BackendsOfOneDeviceShareTheLimitOfTorch) {
  const FakeRuntime runtime;
  const TorchStandIn torch(kTorch);
  const auto first = cuda::open_backend({.device = 0, .budget_bytes = 0});
  first->limit_torch(100);
  asked().clear();
  {
    const auto second = cuda::open_backend({.device = 0, .budget_bytes = 0});
    second->limit_torch(30);
    second->limit_torch(40);
  }
  EXPECT_THAT(asked(),
              testing::ElementsAre("start 0", "limit of 0 130", "limit of 0 170", "limit of 0 140", "limit of 0 100"));
}

}  // namespace
}  // namespace strata::test
