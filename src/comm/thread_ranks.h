// Ranks that are threads of one process: for tests, and for embedding.
#pragma once

#include <memory>
#include <vector>

#include "core/communicator.h"
#include "core/shard_optimizer.h"

namespace strata::comm {

// `world` communicators that meet in this process. Rank r's communicator is used by rank r's threads; each may be
// handed out once. `math` works on the memory that the collectives are given, from several threads at the same time.
// When one of them is aborted or fails, all do, with the first reason. The communicators may outlive each other and
// each must be used by all ranks or none.
std::vector<std::unique_ptr<Communicator>> make_thread_ranks(std::size_t world, ShardMath& math);

}  // namespace strata::comm
