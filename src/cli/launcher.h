// Starts the ranks of a job on this machine, shows what they print and ends all of them when one fails.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/launch_environment.h"

namespace strata::cli {

// What ranks tell each other about a failure; called on the thread of launch_ranks(). Either may be empty.
struct ReportedFailure {
  int exit_code = 0;
  std::string reason;  // "rank 2 failed first: ...", or what was found out about a rank that is silent
};
struct FailureChannel {
  // The first failure that was reported, if any.
  std::function<std::optional<ReportedFailure>()> first;
  // Reports one of a rank that may not have done so itself.
  std::function<void(const ReportedFailure&)> report;
};

struct LaunchOptions {
  std::string program = "/proc/self/exe";
  std::vector<std::string> argv;  // argv[0] included
  Environment environment;        // of this process; the ranks get torchrun's variables beside it
  std::size_t ranks = 1;
  std::uint16_t store_port = 0;  // where the caller runs the TCPStore (agent store)
  FailureChannel failures;
  // After a failure the others may end by themselves for so long, then get SIGTERM, then SIGKILL. They hear of it
  // within a second and need at most three; nothing can be saved any more. With the eight seconds after which a silent
  // rank counts as lost (comm::WatchOptions) all have ended within fifteen.
  std::chrono::milliseconds until_term{4000}, until_kill{1000};
  int out = STDOUT_FILENO, err = STDERR_FILENO;
};

// Runs all ranks to their end. Standard output of rank 0 is passed on as it is; every other line of a rank goes to
// standard error behind "[rank N] ". Ranks read /dev/null and see no terminal.
//
// SIGINT and SIGTERM go to all ranks, which save and end; a second one kills them. When a rank fails (ends with
// anything but 0 and the codes of a stop by signal) the others are told through `failures` and ended. No process is
// left behind, and none outlives this one.
//
// Returns the exit code of the rank that failed first, kDeviceFailed if a signal killed it, with a line on `err` that
// says so; else 128 + the signal that stopped the ranks; else 0. The failure that counts is the one reported first; but
// a rank that ended with a cause of its own goes before one whose collective failed (exit code 6), because a lost rank
// makes those fail.
// Requires: no other SignalPipe; a thread that does not end before the process. Throws: IoError.
int launch_ranks(const LaunchOptions& options);

}  // namespace strata::cli
