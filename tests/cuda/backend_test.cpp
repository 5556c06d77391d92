#include "cuda/cuda_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "cuda/fake_device.h"

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

}  // namespace
}  // namespace strata::test
