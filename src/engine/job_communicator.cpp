#include "engine/job_communicator.h"

#include <memory>
#include <string>
#include <vector>

#include "comm/job.h"
#include "core/budget.h"
#include "core/buffer.h"
#include "core/error.h"
#include "core/parallel.h"
#include "cpu_adam/cpu_shard_math.h"

namespace strata::engine {
namespace {

// Everything that a communicator refers to, in the order in which it may go.
struct Held {
  Held(comm::Job& job, const std::string& name, const std::vector<std::size_t>& ranks)
      : staging("communicator", comm::communicator_staging_bytes(ranks.empty() ? job.world() : ranks.size())),
        comm(job.communicator(math, allocate_host(staging, staging.limit(), MemoryTag::Staging), name, ranks)) {}

  Budget staging;
  // The stream's own thread: more would take the cores of compute to wait for a slower network.
  const std::unique_ptr<Parallel> one_thread = make_thread_pool(1);
  cpu_adam::CpuShardMath math{*one_thread};
  std::shared_ptr<Communicator> comm;
};

}  // namespace

void connect_ranks(comm::Job& job, std::size_t ranks_per_node, EngineConfig& config) {
  const auto connect = [&](const std::string& name, const std::vector<std::size_t>& ranks) {
    const auto held = std::make_shared<Held>(job, name, ranks);
    config.communicator_bytes += held->staging.limit();
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
