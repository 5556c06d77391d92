#include "cli/child.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>

#include "core/error.h"

namespace strata::cli {
namespace {

std::ptrdiff_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

TEST(RunChild, ReturnsWhatTheProgramPrints) {
  const ChildResult result = run_child({"/bin/sh", "-c", "printf 'one\\ntwo'"});
  EXPECT_EQ(result.out, "one\ntwo");
  EXPECT_EQ(result.exit_code, 0);
}

TEST(RunChild, PassesArgumentsUnchanged) {
  EXPECT_EQ(run_child({"printf", "%s|", "a b", "", "'$HOME'\n"}).out, "a b||'$HOME'\n|");
}

TEST(RunChild, ReturnsOutputLongerThanAPipeHolds) {
  EXPECT_EQ(run_child({"head", "-c", "300000", "/dev/zero"}).out, std::string(300000, '\0'));
}

TEST(RunChild, ReturnsTheExitCode) {
  EXPECT_EQ(run_child({"/bin/sh", "-c", "exit 7"}).exit_code, 7);
}

TEST(RunChild, AddsTheSignalThatEndedItTo128) {
  EXPECT_EQ(run_child({"/bin/sh", "-c", "kill -9 $$"}).exit_code, 128 + 9);
}

TEST(RunChild, NamesAProgramThatIsMissing) {
  try {
    run_child({"/a/program/that/is/missing"});
    FAIL() << "started";
  } catch (const IoError& error) {
    EXPECT_EQ(error.failure().errno_value, ENOENT);
    EXPECT_NE(std::string(error.what()).find("/a/program/that/is/missing"), std::string::npos) << error.what();
  }
}

TEST(RunChild, LeavesNoFileOpen) {
  const std::ptrdiff_t before = open_files();
  run_child({"true"});
  EXPECT_THROW(run_child({"/a/program/that/is/missing"}), IoError);
  EXPECT_EQ(open_files(), before);
}

}  // namespace
}  // namespace strata::cli
