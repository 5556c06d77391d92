#include "core/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>

namespace strata::log {
namespace {

template <typename Fn>
std::string stderr_of(Fn fn) {
  testing::internal::CaptureStderr();
  fn();
  return testing::internal::GetCapturedStderr();
}

TEST(Log, ALineIsTimeLevelAndMessage) {
  const std::string text = stderr_of([] { warning("disk is slow"); });

  EXPECT_TRUE(std::regex_match(text, std::regex("[0-9]{2}:[0-9]{2}:[0-9]{2} warning disk is slow\n"))) << text;
}

TEST(Log, BracesInAMessageAreText) {
  EXPECT_THAT(stderr_of([] { error("{} {0} {nonsense"); }), testing::HasSubstr("error {} {0} {nonsense\n"));
}

TEST(Log, DebugIsSilentUntilAskedFor) {
  EXPECT_EQ(stderr_of([] { debug("hidden"); }), "");
  const std::string text = stderr_of([] {
    set_level(Level::Debug);
    debug("shown");
    set_level(Level::Info);
  });
  EXPECT_THAT(text, testing::HasSubstr("debug shown"));
}

TEST(Log, TheLevelHidesWhatIsBelow) {
  const std::string text = stderr_of([] {
    set_level(Level::Error);
    info("i");
    warning("w");
    error("e");
    set_level(Level::Info);
  });

  EXPECT_TRUE(std::regex_match(text, std::regex("[^\n]* error e\n"))) << text;
}

TEST(Log, WarningOnceWritesOnceForAKey) {
  const std::string text = stderr_of([] {
    for (int i = 0; i < 3; ++i) warning_once("log_test.key", "first");
    warning_once("log_test.other", "second");
  });

  EXPECT_TRUE(std::regex_match(text, std::regex("[^\n]* warning first\n[^\n]* warning second\n"))) << text;
}

}  // namespace
}  // namespace strata::log
