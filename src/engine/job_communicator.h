// The communicator of a job as an engine takes it (EngineConfig::comm).
#pragma once

#include <memory>

#include "core/communicator.h"

namespace strata::comm {
class Job;
}

namespace strata::engine {

// Of all ranks of the job, with the arithmetic and the staging that its sums need. Every rank calls it once. The job
// must outlive it. Throws: CommError.
std::shared_ptr<Communicator> make_job_communicator(comm::Job& job);

}  // namespace strata::engine
