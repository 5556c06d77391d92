// The contract suite over the CUDA device, over several seeds of the fake runtime's delays.
#include "contract/device_contract.h"

#include <memory>
#include <string>
#include <utility>

#include "cuda/fake_device.h"

namespace strata::test {
namespace {

// The runtime of one test goes after the device; the last device made is the one whose context pins.
class FakedDevice final : public Device {
 public:
  FakedDevice(const fake_cuda::Config& config, std::uint64_t budget_bytes)
      : runtime_(config), device_({.index = 0, .budget_bytes = budget_bytes, .on_stream_thread = {}}) {
    last = &device_;
  }

  std::string_view name() const override { return device_.name(); }
  std::unique_ptr<Stream> create_stream(std::string name) override { return device_.create_stream(std::move(name)); }
  Buffer allocate(std::size_t bytes, MemoryTag tag) override { return device_.allocate(bytes, tag); }
  Budget& budget() override { return device_.budget(); }

  static inline cuda::CudaDevice* last = nullptr;

 private:
  FakeRuntime runtime_;
  cuda::CudaDevice device_;
};

DeviceCase fake_case(std::string name, const fake_cuda::Config& config) {
  return {
      .name = std::move(name),
      .make = [config](std::uint64_t bytes) { return std::make_unique<FakedDevice>(config, bytes); },
      .host = [](Budget& budget, std::size_t bytes) { return pinned(FakedDevice::last->context(), budget, bytes); }};
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceContract,
                         ::testing::Values(fake_case("InTime", {.delays = false}), fake_case("Seed1", {.seed = 1}),
                                           fake_case("Seed2", {.seed = 2}), fake_case("Seed3", {.seed = 3}),
                                           fake_case("WithoutPools", {.seed = 4, .pools = false}),
                                           fake_case("Unaligned", {.seed = 5, .unaligned = true})),
                         device_case_name);

}  // namespace
}  // namespace strata::test
