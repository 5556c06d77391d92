#include "engine/job_communicator.h"

#include <memory>
#include <string>
#include <vector>

#include "comm/job.h"
#include "core/budget.h"
#include "core/buffer.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/parallel.h"
#include "cpu_adam/cpu_shard_math.h"
#include "engine/cuda_plugin.h"

namespace strata::engine {
namespace {

// Everything that a communicator in host memory refers to, in the order in which it may go.
struct OnHost {
  OnHost(comm::Job& job, const std::string& name, const std::vector<std::size_t>& ranks, std::uint64_t staging_bytes)
      : staging("communicator", staging_bytes),
        comm(job.communicator(math, allocate_host(staging, staging_bytes, MemoryTag::Staging), name, ranks)) {}

  Budget staging;
  // The stream's own thread: more would take the cores of compute to wait for a slower network.
  const std::unique_ptr<Parallel> one_thread = make_thread_pool(1);
  cpu_adam::CpuShardMath math{*one_thread};
  std::shared_ptr<Communicator> comm;
};

// And of one in a GPU's memory.
struct OnGpu {
  OnGpu(comm::Job& job, const std::string& name, const std::vector<std::size_t>& ranks, int device,
        std::uint64_t staging_bytes)
      : gpu(open_cuda({.device = device, .budget_bytes = staging_bytes})),
        math(gpu->math()),
        comm(job.communicator(
            *math, gpu->device().allocate(staging_bytes, MemoryTag::Staging), name, ranks,
            comm::NcclDevice{.device = device, .plugin = cuda_plugin_file(), .pci_bus_id = gpu->facts().pci_bus_id})) {}

  std::unique_ptr<cuda::Backend> gpu;
  std::unique_ptr<ShardMath> math;
  std::shared_ptr<Communicator> comm;
};

// NCCL connects its channels with the first collective of each kind, which takes memory and waits for the other ranks
// where no time-out counts yet. Here all ranks have just met, and free memory has not been asked for.
void connect_channels(Communicator& comm, int device) {
  const std::uint64_t bytes = comm::device_staging_bytes(comm.world());
  if (bytes == 0) return;
  const auto gpu = open_cuda({.device = device, .budget_bytes = bytes});
  const Buffer memory = gpu->device().allocate(bytes, MemoryTag::Staging);
  const TensorSpan full{memory.data(), DType::U8, bytes / comm.world() * comm.world()};
  const auto stream = gpu->device().create_stream("connect");
  comm.all_gather(*stream, full);
  comm.all_to_all(*stream, full);
  stream->record().wait();
  comm.barrier();  // says whether they came through
}

bool computes_on_gpu(const EngineConfig& config) {
  return config.cuda_device && cuda_devices().torch == cuda::TorchPlace::Device;
}

}  // namespace

void connect_ranks(comm::Job& job, std::size_t ranks_per_node, EngineConfig& config) {
  const bool on_gpu = computes_on_gpu(config);
  const auto connect = [&](const std::string& name, const std::vector<std::size_t>& ranks) {
    const std::size_t several = ranks.empty() ? job.world() : ranks.size();
    if (on_gpu) {
      const std::uint64_t staging = comm::device_staging_bytes(several);
      const auto held = std::make_shared<OnGpu>(job, name, ranks, *config.cuda_device, staging);
      connect_channels(*held->comm, *config.cuda_device);
      return std::shared_ptr<Communicator>(held, held->comm.get());
    }
    const std::uint64_t staging = comm::communicator_staging_bytes(several);
    const auto held = std::make_shared<OnHost>(job, name, ranks, staging);
    config.communicator_bytes += staging;
    return std::shared_ptr<Communicator>(held, held->comm.get());
  };
  config.comm = connect("all", {});
  if (!config.shard_within_node && !config.slow_links.two_hops && !config.slow_links.node_partition) return;
  if (job.world() % ranks_per_node != 0) {
    throw ConfigError(std::to_string(job.world()) + " ranks are no whole number of nodes of " +
                      std::to_string(ranks_per_node) + ": set strata.ranks_per_node");
  }
  const std::size_t node = job.rank() / ranks_per_node;
  const std::size_t place = job.rank() % ranks_per_node;
  std::vector<std::size_t> beside, across;
  for (std::size_t l = 0; l < ranks_per_node; ++l) beside.push_back(node * ranks_per_node + l);
  for (std::size_t n = 0; n < job.world() / ranks_per_node; ++n) across.push_back(n * ranks_per_node + place);
  config.node_comm = connect("node " + std::to_string(node), beside);
  config.across_comm = connect("place " + std::to_string(place), across);
}

}  // namespace strata::engine
