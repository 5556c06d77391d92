// What one rank finds out alone and all must act on: failures, requests, words.
#pragma once

#include <functional>
#include <string>

#include "core/communicator.h"

namespace strata::engine {

// Every rank calls these in the same order, on the thread of the communicator's blocking channel. Those that are done
// wait inside a collective, so no rank may take longer than the others by more than the collective time-out. With one
// rank nothing is sent.

// Runs `work` on this rank; returns once it has succeeded on all. Where it failed on some, every rank throws: a rank
// that failed its own failure, the others that of the lowest one which did, of the same type and with the rank's number
// in its text. `what`, as in "save a checkpoint", names an std::filesystem failure, which becomes an IoError.
// Requires: `work` does not use the communicator.
void on_every_rank(Communicator& comm, const char* what, const std::function<void()>& work);
// Likewise, but only rank 0 runs it.
void on_first_rank(Communicator& comm, const char* what, const std::function<void()>& work);

// Whether any rank says so.
bool on_any_rank(Communicator& comm, bool here);

// What `root` gives.
std::string broadcast_text(Communicator& comm, std::string text, std::size_t root = 0);

}  // namespace strata::engine
