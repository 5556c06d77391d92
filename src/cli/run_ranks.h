// Runs a command of this program as several ranks on this machine.
#pragma once

#include <cstddef>
#include <string>

#include "cli/commands.h"

namespace strata::cli {

// As `strata COMMAND ARGUMENTS` in `ranks` processes, with their TCPStore in this one; see launch_ranks(). Returns the
// exit code. Throws: CommError when no store can be had, IoError.
int run_ranks(const std::string& command, const Arguments& arguments, std::size_t ranks);

}  // namespace strata::cli
