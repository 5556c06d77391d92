// The option --nproc, which starts several ranks on this machine.
#pragma once

#include <cstddef>
#include <optional>

#include "cli/commands.h"
#include "cli/launch_environment.h"

namespace strata::cli {

// Takes --nproc N (or --nproc=N) out of the arguments; nothing when it is not there.
// Throws: ConfigError when N is not a number from 1 or given twice, or when a launcher has already made this process a
// rank.
std::optional<std::size_t> take_nproc(Arguments& arguments, const Environment& environment);

}  // namespace strata::cli
