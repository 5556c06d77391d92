// From what went wrong to what the shell sees.
#pragma once

#include <exception>
#include <functional>
#include <ostream>

namespace strata::cli {

// Documented in docs/config.md; scripts depend on them.
enum ExitCode : int {
  kDone = 0,
  kInternalError = 1,
  kUsage = 2,       // a flag or the configuration
  kDoesNotFit = 3,  // memory or drive space
  kBadData = 4,     // a model, data or checkpoint file; a gradient that is not finite
  kIoFailed = 5,
  kDeviceFailed = 6,      // the device or a collective
  kStoppedBySigint = 130  // after saving; 128 + the number of the signal, so 143 for SIGTERM
};

// The exit code for the type of an exception; of nested ones the outermost decides.
int exit_code_of(std::exception_ptr failure);

// 0 for 0, else 128 + signal, as shells report a program that a signal ended.
int exit_code_of_signal(int signal);

// Runs `body` and returns its result. An exception becomes "strata: error: ..." on `err`, with its causes where it is
// nested, and the exit code of its type.
int run_reporting_errors(const std::function<int()>& body, std::ostream& err);

}  // namespace strata::cli
