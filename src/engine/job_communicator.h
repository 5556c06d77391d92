// The communicators of a job as an engine takes them.
#pragma once

#include <cstddef>

#include "engine/engine_config.h"

namespace strata::comm {
class Job;
}

namespace strata::engine {

// Sets `config`'s communicators, with the arithmetic and the staging that their sums need, and how much memory they
// hold. Those of nodes only where the configuration uses them: rank = node * ranks_per_node + place. Every rank calls
// it once, with the same settings. The job must outlive them. Throws: CommError; ConfigError where the ranks are no
// whole nodes.
void connect_ranks(comm::Job& job, std::size_t ranks_per_node, EngineConfig& config);

}  // namespace strata::engine
