// The store of a job, and how its ranks come together in it.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>

#include "comm/rank_info.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace strata::comm {

// Connects to the store at `info`'s address and returns once all ranks of the job have come. Throws: CommError that
// says which have not, which came twice or as one of another number of ranks, or that the store is lost; where the
// others wait for this rank they are told.
c10::intrusive_ptr<c10d::Store> join_store(const RankInfo& info, std::chrono::milliseconds timeout);

}  // namespace strata::comm
