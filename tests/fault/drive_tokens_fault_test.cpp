// Processes that die while they hold tokens of a drive.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <string>

#include "nvme/drive_tokens.h"
#include "support/child_process.h"

namespace strata::test {
namespace {

using nvme::DriveTokens;

constexpr unsigned kLimit = 8;

unsigned take_all(DriveTokens& tokens) {
  unsigned taken = 0;
  while (tokens.take()) ++taken;
  return taken;
}

std::string job(const char* test) {
  return std::string(test) + std::to_string(::getpid());
}

void die_with_all(const std::string& job) {
  DriveTokens tokens(job, "drive", kLimit);
  take_all(tokens);
  (void)::raise(SIGKILL);
}

TEST(DriveTokensFault, NextJobOfTheSameNameHasAll) {
  const std::string name = job("next");
  for (int i = 0; i < 3; ++i) {
    ChildProcess holder([&] { die_with_all(name); });
    EXPECT_EQ(WTERMSIG(holder.wait()), SIGKILL);
    DriveTokens next(name, "drive", kLimit);
    EXPECT_EQ(take_all(next), kLimit);
  }
}

TEST(DriveTokensFault, WhoJoinsBesideSurvivorsTakesNothingForTheDead) {
  const std::string name = job("survivor");
  DriveTokens survivor(name, "drive", kLimit);
  ChildProcess holder([&] { die_with_all(name); });
  EXPECT_EQ(WTERMSIG(holder.wait()), SIGKILL);

  DriveTokens next(name, "drive", kLimit);

  EXPECT_EQ(take_all(next), kLimit);
}

TEST(DriveTokensFault, SurvivorsAreHeldUpForAWhileOnly) {
  const std::string name = job("while");
  DriveTokens survivor(name, "drive", kLimit);
  ChildProcess holder([&] { die_with_all(name); });
  EXPECT_EQ(WTERMSIG(holder.wait()), SIGKILL);
  EXPECT_EQ(take_all(survivor), 1u) << "nobody has noticed yet";

  for (int completions = 0; completions < 100; ++completions) {
    survivor.give_back();
    take_all(survivor);
  }

  EXPECT_EQ(take_all(survivor), 0u);
  for (unsigned i = 0; i < kLimit; ++i) survivor.give_back();
  EXPECT_EQ(take_all(survivor), kLimit);
}

TEST(DriveTokensFault, GoOnWhenWhoMadeThemDies) {
  const std::string name = job("maker");
  int ready[2];
  int joined[2];
  ASSERT_EQ(::pipe(ready) + ::pipe(joined), 0);
  char byte = 0;
  ChildProcess maker([&] {
    DriveTokens tokens(name, "drive", kLimit);
    take_all(tokens);
    if (::write(ready[1], "x", 1) != 1 || ::read(joined[0], &byte, 1) != 1) throw std::runtime_error("pipe");
    (void)::raise(SIGKILL);
  });
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  DriveTokens survivor(name, "drive", kLimit);
  EXPECT_EQ(take_all(survivor), 1u) << "they do not share";
  ASSERT_EQ(::write(joined[1], "x", 1), 1);
  EXPECT_EQ(WTERMSIG(maker.wait()), SIGKILL);

  DriveTokens next(name, "drive", kLimit);

  EXPECT_EQ(take_all(next), kLimit);
}

}  // namespace
}  // namespace strata::test
