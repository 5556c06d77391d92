// What c10d may print.
#pragma once

namespace strata::comm {

// c10d warns with a stack trace of each connection that closes: when a job ends, noise around the one line that says
// why. From now on it prints errors only, unless TORCH_CPP_LOG_LEVEL asks for more.
void quieten_c10d();

}  // namespace strata::comm
