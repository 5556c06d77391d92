// Where the first failure of a job stands in the store: "EXIT_CODE REASON", kNoFailure before.
#pragma once

#include <string>

namespace strata::comm {

inline constexpr const char* kNoFailure = "0";

inline std::string failure_key(const std::string& prefix) {
  return prefix + "/watch/failure";
}

}  // namespace strata::comm
