// Where the libraries lie that a program loads only on machines that need them.
#pragma once

#include <string>

namespace strata {

// The file that the environment variable `variable` names, else `name` in the folder lib beside the program's own
// folder where it is there, else `name` itself, which the loader looks for.
std::string plugin_file(const char* variable, const char* name);

}  // namespace strata
