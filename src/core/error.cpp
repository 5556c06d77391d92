#include "core/error.h"

#include <string_view>
#include <system_error>
#include <utility>

namespace strata {
namespace {

std::string describe(const IoFailure& failure) {
  // An I/O call can fall short without an error code: the file ended before the bytes wanted.
  const std::string reason =
      failure.errno_value == 0 ? "fewer bytes than wanted" : std::generic_category().message(failure.errno_value);
  std::string text = failure.op + " " + failure.path + " at offset " + std::to_string(failure.offset_bytes) + ", " +
                     std::to_string(failure.bytes) + " bytes: " + reason + " (errno " +
                     std::to_string(failure.errno_value) + ").";
  if (!failure.hint.empty()) text += " " + failure.hint;
  return text;
}

}  // namespace

IoError::IoError(IoFailure failure) : Error(describe(failure)), failure_(std::move(failure)) {}

void contract_violation(const char* condition, const std::string& message, const char* file, int line) {
  // __FILE__ is the path on the machine that built the program; the name alone identifies the place.
  std::string_view name(file);
  name.remove_prefix(name.find_last_of('/') + 1);  // npos + 1 is 0
  throw ContractViolation(message + " (" + std::string(name) + ":" + std::to_string(line) + ": " + condition +
                          " does not hold). This is a bug in the caller; please report it.");
}

}  // namespace strata
