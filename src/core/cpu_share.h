// Which CPUs of a machine each of several processes takes.
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "core/communicator.h"

namespace strata {

// Sorted numbers of CPUs.
using CpuList = std::vector<int>;

// Those that the calling thread may run on (sched_getaffinity(2)); empty when the kernel does not say.
CpuList allowed_cpus();

// Part `index` of `count` equal ones of `cpus`: neighbours in the machine's topology (packages, NUMA nodes, caches,
// cores), whole cores where there are as many cores as parts, at least one CPU; with more parts than CPUs several get
// the same one. A part is no larger than its part of `granted`, the CPUs' worth of time that a control group gives to
// all of them, because threads beyond that only take turns. Requires: index < count, cpus not empty.
CpuList cpu_share(const CpuList& cpus, std::size_t index, std::size_t count,
                  std::size_t granted = std::numeric_limits<std::size_t>::max());

// Collective: this rank's CPUs. Ranks of one machine that may all run on the same CPUs divide those among them; ranks
// that a launcher has bound to CPUs of their own keep them. Never from OMP_NUM_THREADS, which launchers set to 1, and
// not from LOCAL_RANK: a mask that torchrun's own caller has set does not say whose it is, but equal masks do.
CpuList cpu_share(Communicator& comm);

// Binds every thread of this process, and so all threads made later: usable_cpus() then answers with the share. Advice:
// where the kernel refuses, a warning says so. Requires: no thread is being made.
void bind_process(const CpuList& cpus);

}  // namespace strata
