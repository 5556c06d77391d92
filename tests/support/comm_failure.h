// What a communicator says when it fails.
#pragma once

#include <functional>
#include <string>

#include "core/error.h"

namespace strata::test {

// The text of the CommError that fn() throws; "no CommError" where it throws nothing. Others pass through.
inline std::string failure_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const CommError& e) {
    return e.what();
  }
  return "no CommError";
}

}  // namespace strata::test
