#include "cli/exit_code.h"

#include <gtest/gtest.h>

#include <csignal>
#include <exception>
#include <filesystem>
#include <new>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "core/error.h"

namespace strata::cli {
namespace {

template <class Failure>
int code_of(Failure failure) {
  return exit_code_of(std::make_exception_ptr(std::move(failure)));
}

TEST(ExitCode, FollowsTheTypeOfTheException) {
  EXPECT_EQ(code_of(std::runtime_error("x")), 1);
  EXPECT_EQ(code_of(ContractViolation("x")), 1);
  EXPECT_EQ(code_of(Cancelled("x")), 1);
  EXPECT_EQ(code_of(7), 1);
  EXPECT_EQ(code_of(ConfigError("x")), 2);
  EXPECT_EQ(code_of(OutOfBudget("x", 2, 1)), 3);
  EXPECT_EQ(code_of(std::bad_alloc()), 3);
  EXPECT_EQ(code_of(DataError("x")), 4);
  EXPECT_EQ(code_of(CorruptionError("x")), 4);
  EXPECT_EQ(code_of(IoError({.errno_value = 5, .op = "read", .path = "p", .hint = ""})), 5);
  EXPECT_EQ(code_of(std::filesystem::filesystem_error("x", std::error_code(2, std::generic_category()))), 5);
  EXPECT_EQ(code_of(DeviceError("x")), 6);
  EXPECT_EQ(code_of(CommError("x")), 6);
}

TEST(ExitCode, OfASignalIsTheOneOfShells) {
  EXPECT_EQ(exit_code_of_signal(0), 0);
  EXPECT_EQ(exit_code_of_signal(SIGINT), kStoppedBySigint);
  EXPECT_EQ(exit_code_of_signal(SIGTERM), 143);
}

TEST(RunReportingErrors, PassesTheResultOnAndPrintsNothing) {
  std::ostringstream err;

  EXPECT_EQ(run_reporting_errors([] { return 130; }, err), 130);
  EXPECT_EQ(err.str(), "");
}

TEST(RunReportingErrors, PrintsTheMessageAndReturnsTheCode) {
  std::ostringstream err;

  EXPECT_EQ(run_reporting_errors([]() -> int { throw ConfigError("seed: 'x' is not a whole number"); }, err), 2);
  EXPECT_EQ(err.str(), "strata: error: seed: 'x' is not a whole number\n");
}

TEST(RunReportingErrors, PrintsTheCausesOfANestedException) {
  std::ostringstream err;
  const auto body = []() -> int {
    try {
      throw std::runtime_error("inner");
    } catch (...) {
      std::throw_with_nested(DataError("outer"));
    }
  };

  EXPECT_EQ(run_reporting_errors(body, err), 4);
  EXPECT_EQ(err.str(), "strata: error: outer\n  caused by: inner\n");
}

TEST(RunReportingErrors, SurvivesWhatIsNoException) {
  std::ostringstream err;

  EXPECT_EQ(run_reporting_errors([]() -> int { throw 7; }, err), 1);
  EXPECT_EQ(err.str(), "strata: error: an exception of an unknown type\n");
}

}  // namespace
}  // namespace strata::cli
