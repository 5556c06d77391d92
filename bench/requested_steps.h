// Steps on request, for scripts that measure other engines in turn with this one.
#pragma once

#include <istream>
#include <ostream>

#include "bench/bench_step.h"

namespace strata::bench {

// Compute: there are none. Everything else is in memory and nothing of an update runs beside a forward, so that forward
// and backward are computing alone; 6 bytes a parameter. Of several ranks each computes for itself.
enum class StatesHome : std::uint8_t { Compute, Host, Nvme };

// The model of run_step_bench() in one engine. Prints a line of JSON when it is ready, {"parameters", "compute",
// "description", "recomputed_layers", "uncached_read_bytes", "uncached_written_bytes": what a step would move if
// nothing stayed in memory (uncached_traffic.h)}, and one for each line that it reads, after a settled step:
// {"seconds", "forward", "backward", "optimizer", "stall", "nvme_read_bytes", "nvme_written_bytes", "loss",
// "sent_bytes": to other ranks}. Between two requests nothing of it runs. Ends with `in`. Several ranks are each asked
// for a step, and each answers. Throws: ConfigError, OutOfBudget, IoError, CommError.
void run_requested_steps(const StepBenchOptions& options, StatesHome home, std::istream& in, std::ostream& out,
                         const Guard& guard = unguarded);

}  // namespace strata::bench
