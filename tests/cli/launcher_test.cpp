// The ranks here are shell scripts.
#include "cli/launcher.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "core/error.h"
#include "support/temp_dir.h"

namespace strata::cli {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing::UnorderedElementsAre;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

class LauncherTest : public testing::Test {
 protected:
  LauncherTest() {
    options_.program = "/bin/sh";
    options_.environment = environment_of_process();
    options_.environment["DIR"] = folder_.path();
    options_.store_port = 4321;
    options_.until_term = 60s;  // a test that needs it shortens it
    options_.out = ::open((folder_.path() / "out").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    options_.err = ::open((folder_.path() / "err").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  }
  ~LauncherTest() override {
    ::close(options_.out);
    ::close(options_.err);
  }

  int launch(std::size_t ranks, const std::string& script) {
    options_.ranks = ranks;
    options_.argv = {"sh", "-c", script};
    return launch_ranks(options_);
  }
  std::string out() const { return text_of(folder_.path() / "out"); }
  std::string err() const { return text_of(folder_.path() / "err"); }

  // Of a process whose number a script has written there.
  pid_t pid_in(const std::string& file) const {
    std::string text;
    while (!(text = text_of(folder_.path() / file)).ends_with('\n')) std::this_thread::sleep_for(1ms);
    return std::stoi(text);
  }

  test::TempDir folder_;
  LaunchOptions options_;
};

// Until it is gone; a zombie that nobody has reaped is.
void wait_for_end_of(pid_t pid) {
  for (;;) {
    const std::string status = text_of("/proc/" + std::to_string(pid) + "/stat");
    const std::size_t name_end = status.rfind(')');
    if (name_end == std::string::npos || status.substr(name_end, 3) == ") Z") return;
    std::this_thread::sleep_for(1ms);
  }
}

TEST_F(LauncherTest, TellsEachRankWhoItIs) {
  const int code = launch(2,
                          "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT "
                          "$TORCHELASTIC_USE_AGENT_STORE $TORCHELASTIC_RESTART_COUNT >&2");

  EXPECT_EQ(code, 0);
  EXPECT_THAT(lines_of(err()),
              UnorderedElementsAre("[rank 0] 0 0 2 2 127.0.0.1 4321 True 0", "[rank 1] 1 1 2 2 127.0.0.1 4321 True 0"));
}

TEST_F(LauncherTest, PassesOnStandardOutputOfRankZeroAsItIs) {
  EXPECT_EQ(launch(2, "printf 'from %s\\r\\n\\nno end' $RANK"), 0);

  EXPECT_EQ(out(), "from 0\r\n\nno end");
  EXPECT_EQ(err(), "[rank 1] from 1\n[rank 1] \n[rank 1] no end\n");
}

TEST_F(LauncherTest, NeverMixesLines) {
  const int code = launch(3,
                          "i=0; while [ $i -lt 500 ]; do printf 'half %s ' $i >&2; printf 'and half\\n' >&2; "
                          "i=$((i + 1)); done");

  EXPECT_EQ(code, 0);
  const std::vector<std::string> lines = lines_of(err());
  EXPECT_EQ(lines.size(), 1500U);
  EXPECT_THAT(lines, Each(testing::MatchesRegex("\\[rank [0-2]\\] half [0-9]+ and half")));
}

TEST_F(LauncherTest, GivesRanksNoInputAndNoTerminal) {
  EXPECT_EQ(launch(1, "cat; test -t 0 || test -t 1 || test -t 2 || echo no terminal"), 0);
  EXPECT_EQ(out(), "no terminal\n");
}

TEST_F(LauncherTest, ReturnsTheCodeOfTheRankThatFailedFirst) {
  // Rank 0 goes on until it is told to stop, and answers that with a code of its own.
  options_.until_term = 1ms;
  const int code = launch(2, "if [ $RANK = 1 ]; then echo why >&2; exit 4; fi; trap 'exit 9' TERM; sleep 60 & wait");

  EXPECT_EQ(code, 4);
  EXPECT_THAT(err(), AllOf(HasSubstr("[rank 1] why\nstrata: rank 1 ended with exit code 4; ending the others\n"),
                           HasSubstr("strata: error: rank 1 failed first: ended with exit code 4\n")));
}

TEST_F(LauncherTest, LetsTheOthersEndByThemselves) {
  std::optional<ReportedFailure> told;
  options_.failures.report = [&](const ReportedFailure& failure) {
    told = failure;
    std::ofstream(folder_.path() / "told") << "yes\n";
  };
  const int code = launch(
      2, "[ $RANK = 1 ] && exit 5; until [ -e $DIR/told ]; do sleep 0.01; done; echo ended in good order; exit 6");

  EXPECT_EQ(code, 5);
  EXPECT_EQ(out(), "ended in good order\n");
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->exit_code, 5);
  EXPECT_EQ(told->reason, "rank 1 failed first: ended with exit code 5");
}

TEST_F(LauncherTest, KillsARankThatDoesNotStop) {
  options_.until_term = options_.until_kill = 1ms;
  const int code = launch(2, "[ $RANK = 1 ] && exit 3; trap '' TERM; while :; do sleep 0.05; done");
  EXPECT_EQ(code, 3);
}

TEST_F(LauncherTest, DoesNotWaitForARankThatIsStopped) {
  options_.failures.first = [] { return ReportedFailure{6, "rank 1 has not answered for 8 s"}; };
  const int code = launch(2, "if [ $RANK = 1 ]; then kill -STOP $$; fi; sleep 0.3; exit 6");

  EXPECT_EQ(code, 6);
  EXPECT_TRUE(err().ends_with("strata: error: rank 1 has not answered for 8 s\n")) << err();
}

TEST_F(LauncherTest, SaysWhichSignalKilledARank) {
  options_.until_term = 1ms;
  const int code = launch(2, "[ $RANK = 1 ] && kill -KILL $$; sleep 60");

  EXPECT_EQ(code, 6);
  EXPECT_THAT(err(), AllOf(HasSubstr("rank 1 was killed by signal 9 (SIGKILL)"), HasSubstr("memory")));
}

TEST_F(LauncherTest, OfOtherSignalsSaysNothingAboutMemory) {
  EXPECT_EQ(launch(1, "kill -SEGV $$"), 6);
  EXPECT_THAT(err(), AllOf(HasSubstr("rank 0 was killed by signal 11 (SIGSEGV)"), Not(HasSubstr("memory"))));
}

TEST_F(LauncherTest, BelievesWhatTheRanksReported) {
  options_.failures.first = [] { return ReportedFailure{4, "rank 2 failed first: no such file"}; };
  options_.failures.report = [](const ReportedFailure&) { FAIL() << "it is known already"; };
  const int code = launch(3,
                          "if [ $RANK = 2 ]; then until [ -e $DIR/slow ]; do sleep 0.01; done; exit 4; fi; "
                          "[ $RANK = 0 ] && touch $DIR/slow; exit 6");

  EXPECT_EQ(code, 4);
  EXPECT_THAT(err(), HasSubstr("strata: error: rank 2 failed first: no such file\n"));
}

// What rank 0 reports is that it has lost rank 1, which could say nothing itself.
TEST_F(LauncherTest, PutsAKilledRankBeforeTheFailedCollectiveOfAnother) {
  options_.failures.first = [] { return ReportedFailure{6, "rank 0 failed first: connection closed"}; };
  EXPECT_EQ(launch(2, "[ $RANK = 1 ] && kill -KILL $$; sleep 0.2; exit 6"), 6);
  EXPECT_THAT(err(), HasSubstr("strata: error: rank 1 failed first: was killed by signal 9"));
}

TEST_F(LauncherTest, PutsALaterCauseBeforeAnEarlierConsequence) {
  EXPECT_EQ(launch(2, "[ $RANK = 0 ] && exit 6; sleep 0.2; exit 3"), 3);
  EXPECT_THAT(err(), HasSubstr("strata: error: rank 1 failed first: ended with exit code 3"));
}

TEST_F(LauncherTest, EndsWhatARankHasStartedWithIt) {
  options_.until_term = 1ms;
  EXPECT_EQ(launch(2, "[ $RANK = 0 ] && { sleep 600 & echo $! > $DIR/grandchild; exit 3; }; sleep 600"), 3);
  wait_for_end_of(pid_in("grandchild"));
}

TEST_F(LauncherTest, SendsAStopSignalToAllAndReturnsItsCode) {
  for (const auto& [name, code] : {std::pair{"INT", 130}, {"TERM", 143}}) {
    const std::string script = "trap 'echo saved >&2; exit " + std::to_string(code) + "' INT TERM; touch $DIR/" + name +
                               "$RANK; if [ $RANK = 0 ]; then until [ -e $DIR/" + name +
                               "1 ]; do sleep 0.01; done; kill -" + name + " $PPID; fi; while :; do sleep 0.01; done";
    EXPECT_EQ(launch(2, script), code);
  }
  EXPECT_THAT(err(), AllOf(HasSubstr("signal 2 (SIGINT) goes to all ranks"), HasSubstr("[rank 0] saved\n"),
                           HasSubstr("[rank 1] saved\n"), Not(HasSubstr("error"))));
}

TEST_F(LauncherTest, WaitsForASlowRankAfterAStopSignal) {
  options_.until_term = options_.until_kill = 1ms;
  const int code = launch(2,
                          "trap '[ $RANK = 0 ] && { sleep 0.3; echo saved at last; }; exit 130' INT; touch $DIR/$RANK; "
                          "if [ $RANK = 0 ]; then until [ -e $DIR/1 ]; do sleep 0.01; done; kill -INT $PPID; fi; "
                          "while :; do sleep 0.01; done");
  EXPECT_EQ(code, 130);
  EXPECT_EQ(out(), "saved at last\n");
}

TEST_F(LauncherTest, KillsAllAtTheSecondSignal) {
  const int code = launch(2,
                          "trap '[ $RANK = 0 ] && kill -TERM $PPID' INT; trap '' TERM; touch $DIR/$RANK; "
                          "if [ $RANK = 0 ]; then until [ -e $DIR/1 ]; do sleep 0.01; done; kill -INT $PPID; fi; "
                          "while :; do sleep 0.01; done");
  EXPECT_EQ(code, 130);
}

TEST_F(LauncherTest, ReportsAProgramThatCannotBeStarted) {
  options_.program = "/nowhere/strata";
  try {
    launch(2, "");
    FAIL() << "started";
  } catch (const IoError& error) {
    EXPECT_EQ(error.failure().errno_value, ENOENT);
    EXPECT_EQ(error.failure().path, "/nowhere/strata");
  }
}

TEST_F(LauncherTest, DiesWithAllItsRanks) {
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    launch(2, "echo $$ > $DIR/rank$RANK; while :; do sleep 0.01; done");
    ::_exit(0);
  }
  const pid_t first = pid_in("rank0"), second = pid_in("rank1");

  ::kill(launcher, SIGKILL);

  int status = 0;
  EXPECT_EQ(::waitpid(launcher, &status, 0), launcher);
  wait_for_end_of(first);
  wait_for_end_of(second);
}

TEST_F(LauncherTest, LeavesTheSignalsAsTheyWere) {
  struct sigaction before = {}, after = {};
  sigaction(SIGINT, nullptr, &before);
  launch(1, ":");
  sigaction(SIGINT, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

}  // namespace
}  // namespace strata::cli
