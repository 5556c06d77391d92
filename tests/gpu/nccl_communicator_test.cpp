// The contract suite of communicators over NCCL: a rank for each GPU, up to four, as threads of this process. With one
// GPU that is a job of one rank. Without a GPU there is nothing to instantiate it with.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <cstdlib>

#include "comm/c10d_communicator.h"
#include "comm/gloo_backend.h"
#include "comm/nccl_backend.h"
#include "contract/communicator_contract.h"
#include "engine/cuda_plugin.h"

namespace strata::test {
namespace {

constexpr std::uint64_t kDeviceBytes = std::uint64_t{256} << 20;
constexpr std::chrono::milliseconds kTimeout{60000};

// Of all tests. Never closed: the driver is gone before static objects are.
struct Gpu {
  std::unique_ptr<cuda::Backend> backend;
  std::unique_ptr<ShardMath> math;
};

Gpu open(int device) {
  cuda::BackendOptions options;
  options.device = device;
  options.budget_bytes = kDeviceBytes;
  std::unique_ptr<cuda::Backend> backend = engine::open_cuda(options);
  std::unique_ptr<ShardMath> math = backend->math();
  return {std::move(backend), std::move(math)};
}

Gpu& gpu(std::size_t rank) {
  static std::vector<Gpu>& all = *[] {
    auto* const gpus = new std::vector<Gpu>;
    for (int device = 0; device < engine::cuda_devices().count; ++device) gpus->push_back(open(device));
    return gpus;
  }();
  return all.at(rank);
}

class DeviceOfGpu final : public Device {
 public:
  explicit DeviceOfGpu(Device& device) : device_(device) {}
  std::string_view name() const override { return device_.name(); }
  std::unique_ptr<Stream> create_stream(std::string name) override { return device_.create_stream(std::move(name)); }
  Buffer allocate(std::size_t bytes, MemoryTag tag) override { return device_.allocate(bytes, tag); }
  Budget& budget() override { return device_.budget(); }

 private:
  Device& device_;
};

std::vector<std::shared_ptr<Communicator>> nccl_ranks(std::size_t world) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::shared_ptr<Communicator>> ranks(world);
  run_ranks(world, [&](std::size_t r) {
    const auto part = [&](const char* name) { return c10::make_intrusive<c10d::PrefixStore>(name, store); };
    comm::C10dGroups groups{
        .queued = comm::make_nccl_backend(
            part("queued"), r, world,
            {.device = static_cast<int>(r), .timeout = kTimeout, .plugin = engine::cuda_plugin_file()}),
        .blocking = comm::make_gloo_backend(part("blocking"), r, world, {.timeout = kTimeout}),
        .timeout = kTimeout};
    for (std::size_t i = 0; i < world; ++i) groups.ranks.push_back(i);
    Buffer staging = gpu(r).backend->device().allocate(comm::kDeviceStagingBytes, MemoryTag::Staging);
    ranks[r] = comm::make_c10d_communicator(std::move(groups), *gpu(r).math, std::move(staging));
  });
  return ranks;
}

std::vector<CommunicatorCase> cases() {
  const auto gpus = static_cast<std::size_t>(engine::cuda_devices().count);
  if (gpus == 0) return {};
  // Between ranks of one process NCCL's kernels reach into the other GPU's memory by its address. Ours is of a memory
  // pool that gives no other GPU access, and a run has a process for each rank anyway, where NCCL goes through buffers
  // of its own: so here too. Read when NCCL starts.
  setenv("NCCL_P2P_DIRECT_DISABLE", "1", 0);
  return {{.name = "Nccl",
           .make = nccl_ranks,
           .device = [](std::size_t rank) { return std::make_unique<DeviceOfGpu>(gpu(rank).backend->device()); },
           .max_world = std::min<std::size_t>(gpus, 4),
           .on_device = true}};
}

INSTANTIATE_TEST_SUITE_P(Gpu, CommunicatorContract, ::testing::ValuesIn(cases()), communicator_case_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorContract);

}  // namespace
}  // namespace strata::test
