#include "engine/job_communicator.h"

#include "comm/job.h"
#include "core/budget.h"
#include "core/buffer.h"
#include "core/parallel.h"
#include "cpu_adam/cpu_shard_math.h"

namespace strata::engine {
namespace {

// Everything that the communicator refers to, in the order in which it may go.
struct Held {
  explicit Held(comm::Job& job)
      : staging("communicator", comm::communicator_staging_bytes(job.world())),
        comm(job.communicator(math, allocate_host(staging, staging.limit(), MemoryTag::Staging))) {}

  Budget staging;
  // The stream's own thread: more would take the cores of compute to wait for a slower network.
  const std::unique_ptr<Parallel> one_thread = make_thread_pool(1);
  cpu_adam::CpuShardMath math{*one_thread};
  std::shared_ptr<Communicator> comm;
};

}  // namespace

std::shared_ptr<Communicator> make_job_communicator(comm::Job& job) {
  const auto held = std::make_shared<Held>(job);
  return {held, held->comm.get()};
}

}  // namespace strata::engine
