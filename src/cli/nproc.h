// Options that say how many ranks there are.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "cli/commands.h"
#include "cli/launch_environment.h"

namespace strata::cli {

// Takes `option` N (or `option`=N) out of the arguments; nothing when it is not there. Throws: ConfigError when N is
// not a number from 1 or given twice.
std::optional<std::size_t> take_ranks(Arguments& arguments, const std::string& option);

// Takes --nproc N, which starts N ranks on this machine, out of the arguments; nothing when it is not there.
// Throws: ConfigError when N is not a number from 1 or given twice, or when a launcher has already made this process a
// rank.
std::optional<std::size_t> take_nproc(Arguments& arguments, const Environment& environment);

}  // namespace strata::cli
