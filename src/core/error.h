// The one hierarchy of exceptions. A message holds the values and what to do next; the type decides the exit code.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace strata {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An option, a configuration key or their combination is wrong (exit code 2).
class ConfigError : public Error {
 public:
  using Error::Error;
};

// What was asked does not fit the budget (exit code 3).
class OutOfBudget : public Error {
 public:
  OutOfBudget(const std::string& message, std::uint64_t need_bytes, std::uint64_t have_bytes)
      : Error(message), need_bytes_(need_bytes), have_bytes_(have_bytes) {}
  std::uint64_t need_bytes() const noexcept { return need_bytes_; }
  std::uint64_t have_bytes() const noexcept { return have_bytes_; }

 private:
  std::uint64_t need_bytes_;
  std::uint64_t have_bytes_;
};

// A model, data or checkpoint file is missing or is not what it should be (exit code 4).
class DataError : public Error {
 public:
  using Error::Error;
};

// Bytes read back are not the bytes written (exit code 4).
class CorruptionError : public DataError {
 public:
  using DataError::DataError;
};

// A system call or a ring request failed (exit code 5).
struct IoFailure {
  int errno_value = 0;
  std::string op;  // "read", "write", "open", ...
  std::string path;
  std::uint64_t offset_bytes = 0;
  std::uint64_t bytes = 0;  // wanted
  std::string hint;         // what to do next; may be empty
};

class IoError : public Error {
 public:
  explicit IoError(IoFailure failure);
  const IoFailure& failure() const noexcept { return failure_; }

 private:
  IoFailure failure_;
};

// The device or its driver failed (exit code 6).
class DeviceError : public Error {
 public:
  using Error::Error;
};

// A collective failed (exit code 6).
class CommError : public Error {
 public:
  using Error::Error;
};

// The work was abandoned because its owner is shutting down.
class Cancelled : public Error {
 public:
  using Error::Error;
};

// A caller broke a precondition: a bug in the caller, never a user's mistake (exit code 1).
class ContractViolation : public Error {
 public:
  using Error::Error;
};

[[noreturn]] void contract_violation(const char* condition, const std::string& message, const char* file, int line);

}  // namespace strata

// Checks what a caller must guarantee. Always on; never put an effect inside.
#define STRATA_EXPECTS(condition, message)                                                   \
  do {                                                                                       \
    if (!(condition)) ::strata::contract_violation(#condition, message, __FILE__, __LINE__); \
  } while (false)
