// Who this process is among the ranks of a job, from the variables that launchers set.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "comm/rank_info.h"

namespace strata::cli {

using Environment = std::map<std::string, std::string, std::less<>>;

Environment environment_of_process();

// Of the keys in a store that outlives ranks: where those of the first start are, which is the only one of --nproc.
inline constexpr std::string_view kFirstStartPrefix = "/worker/attempt_0";

// The first of these that says how many ranks there are: torchrun's names (which may also be set by hand), Open MPI's,
// those of MPICH and Intel MPI, Slurm's for a step that srun started. None: one process, as in a Slurm allocation
// without srun. An empty variable counts as not set.
//
// MASTER_ADDR and MASTER_PORT win under every launcher. Without them Slurm's ranks meet at the first host of the step
// at a port that its ids give, and those of Open MPI, if all are on one machine, there at a port that the job's name
// gives. LOCAL_RANK and LOCAL_WORLD_SIZE may be left out of torchrun's names where MASTER_ADDR is this machine
// (localhost, 127.*): then all ranks are on it.
//
// Throws: ConfigError that lists which variables are needed and which are set, where one is missing or impossible.
comm::RankInfo rank_from_environment(const Environment& environment);

// "node[01-03,7],other" -> "node01".
std::string first_host(std::string_view slurm_node_list);

}  // namespace strata::cli
