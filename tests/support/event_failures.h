// Failures that tests put into events and read back.
#pragma once

#include <exception>
#include <string>

#include "core/error.h"

namespace strata::test {

inline std::exception_ptr failure(const std::string& text) {
  return std::make_exception_ptr(DeviceError(text));
}

// What the failure says; "success" for none.
inline std::string text_of(const std::exception_ptr& error) {
  if (!error) return "success";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

}  // namespace strata::test
