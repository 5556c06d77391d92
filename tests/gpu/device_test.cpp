// The contract suite of devices on a GPU, and what the back-end promises beyond it.
#include "contract/device_contract.h"

#include "engine/cuda_plugin.h"
#include "gpu/gpu.h"

namespace strata::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Gpu, DeviceContract,
                         ::testing::Values(DeviceCase{
                             .name = "Cuda",
                             .make = [](std::uint64_t bytes) { return std::make_unique<GpuDevice>(bytes); },
                             .host = pinned}),
                         device_case_name);

TEST(GpuFacts, DescribeADeviceThatTheKernelsAreBuiltFor) {
  const cuda::DeviceFacts facts = shared_gpu().facts();

  EXPECT_FALSE(facts.name.empty());
  EXPECT_GE(facts.major, 8);
  EXPECT_GT(facts.multiprocessors, 0u);
  EXPECT_LE(facts.free_bytes, facts.total_bytes);
  EXPECT_GT(facts.total_bytes, 0u);
  EXPECT_GE(facts.driver_version, 1000);
  EXPECT_GE(facts.runtime_version, 1000);
}

TEST(GpuFacts, ADeviceThatIsNotThereIsAnError) {
  cuda::BackendOptions options;
  options.device = 1000;

  EXPECT_THROW(engine::open_cuda(options), DeviceError);
}

}  // namespace
}  // namespace strata::test
