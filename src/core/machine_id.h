// Which machine this is.
#pragma once

#include <string>

namespace strata {

// The same for all processes of a running machine, in containers too, which may have host names of their own
// (/proc/sys/kernel/random/boot_id, random(4)). Empty where it is not known.
std::string machine_id();

}  // namespace strata
