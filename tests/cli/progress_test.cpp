#include "cli/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <string>

#include "core/error.h"

namespace strata::cli {
namespace {

constexpr double kEta = 3 * 3600 + 12 * 60 + 40;

engine::StepReport report() {
  engine::StepReport r;
  r.step = 120;
  r.total_steps = 1500;
  r.epoch = 0.24;
  r.loss = 1.8321;
  r.learning_rate = 1.8e-5;
  r.grad_norm = 0.91;
  r.tokens = 8120;
  r.step_seconds = 10;
  r.seconds.stall = 0.7;
  r.bytes.nvme_read = 19'000'000'000;
  r.bytes.nvme_written = 11'000'000'000;
  r.peak_bytes = {.device = 515396076, .host = 332859965, .nvme = 0};   // 0.48 and 0.31 GiB
  r.limit_bytes = {.device = 536870912, .host = 408021893, .nvme = 0};  // 0.50 and 0.38 GiB
  return r;
}

std::string bar(int columns) {
  return bar_line(report(), kEta, columns, Terminal::Colour::Off);
}

Terminal terminal_of(int columns) {
  return {
      .kind = Terminal::Kind::Interactive, .colour = Terminal::Colour::Off, .columns = [columns] { return columns; }};
}

TEST(StepLine, IsTheDocumentedOne) {
  EXPECT_EQ(step_line(report(), kEta),
            "step 120/1500 ep 0.24 loss 1.832 lr 1.8e-5 gnorm 0.91 tok/s 812 dev 0.48/0.50 ram 0.31/0.38 "
            "nvme r1.9 w1.1 GB/s stall 7% eta 3:12:40");
}

TEST(StepLine, LeavesOutWhatIsUnknown) {
  engine::StepReport r;
  r.step = 3;
  r.loss = 2;

  EXPECT_EQ(step_line(r, std::nullopt), "step 3 ep 0.00 loss 2.000 lr 0 gnorm 0.00 tok/s 0.00 stall 0%");
}

TEST(StepLine, ShowsSkippedStepsWhereThereAreSome) {
  engine::StepReport r = report();
  r.skipped_steps = 2;

  EXPECT_NE(step_line(r, kEta).find("stall 7% skipped 2 eta 3:12:40"), std::string::npos);
}

TEST(StepLine, ShowsTheLossScaleWhereThereIsOne) {
  engine::StepReport r = report();
  r.loss_scale = 65536;

  EXPECT_NE(step_line(r, kEta).find("stall 7% scale 65536 eta 3:12:40"), std::string::npos);
}

TEST(StepLine, ShowsValuesThatAreNotFinite) {
  engine::StepReport r = report();
  r.loss = std::numeric_limits<double>::quiet_NaN();
  r.grad_norm = std::numeric_limits<double>::infinity();

  const std::string line = step_line(r, kEta);

  EXPECT_NE(line.find("loss nan"), std::string::npos);
  EXPECT_NE(line.find("gnorm inf"), std::string::npos);
}

TEST(StepLine, NumbersKeepAFewDigitsAtEveryMagnitude) {
  engine::StepReport r = report();
  r.learning_rate = 0.001;
  r.grad_norm = 123456;
  r.tokens = 25;
  r.peak_bytes.device = 21ull << 30;
  r.limit_bytes.device = 640ull << 30;
  r.bytes.nvme_read = 300'000'000;

  EXPECT_EQ(step_line(r, 59.6),
            "step 120/1500 ep 0.24 loss 1.832 lr 0.001 gnorm 1.23e5 tok/s 2.50 dev 21.0/640 ram 0.31/0.38 "
            "nvme r0.03 w1.1 GB/s stall 7% eta 1:00");
}

TEST(BarLine, At40ColumnsKeepsStepLossAndEta) {
  EXPECT_EQ(bar(40), "step 120/1500 loss 1.832 eta 3:12:40");
}

TEST(BarLine, At80ColumnsKeepsWhatIsUrgent) {
  EXPECT_EQ(bar(80), "step 120/1500 loss 1.832 lr 1.8e-5 gnorm 0.91 tok/s 812 stall 7% eta 3:12:40");
}

TEST(BarLine, At200ColumnsHasEverythingAndABar) {
  EXPECT_EQ(bar(200),
            "step 120/1500 [##----------------------------] ep 0.24 loss 1.832 lr 1.8e-5 gnorm 0.91 tok/s 812 "
            "dev 0.48/0.50 ram 0.31/0.38 nvme r1.9 w1.1 GB/s stall 7% eta 3:12:40");
}

TEST(BarLine, NeverReachesTheLastColumn) {
  for (int columns = 0; columns <= 220; ++columns) {
    EXPECT_LE(bar(columns).size(), static_cast<std::size_t>(std::max(columns - 1, 1))) << columns;
  }
}

TEST(BarLine, IsFullAtTheLastStep) {
  engine::StepReport r = report();
  r.step = r.total_steps;

  EXPECT_NE(bar_line(r, 0, 200, Terminal::Colour::Off).find("[##############################]"), std::string::npos);
}

TEST(BarLine, ColourAddsNothingButEscapeSequences) {
  std::string text = bar_line(report(), kEta, 200, Terminal::Colour::On);
  ASSERT_NE(text.find("\x1b["), std::string::npos);
  for (std::size_t at = text.find('\x1b'); at != std::string::npos; at = text.find('\x1b')) {
    text.erase(at, text.find('m', at) - at + 1);
  }

  EXPECT_EQ(text, bar(200));
}

TEST(LoggedStep, IsTheFirstTheLastAndEveryNth) {
  std::string logged;
  for (std::int64_t step = 1; step <= 8; ++step) logged += is_logged_step(step, 8, 3) ? 'x' : '.';

  EXPECT_EQ(logged, "x.x..x.x");
}

TEST(Progress, WritesOneLinePerLoggedStepWhereThereIsNoTerminal) {
  std::ostringstream out;
  Progress progress(out, Terminal{}, 2);
  engine::StepReport r = report();
  r.total_steps = 4;

  for (r.step = 1; r.step <= 4; ++r.step) progress.step(r);
  progress.finish();

  const std::string rest =
      " ep 0.24 loss 1.832 lr 1.8e-5 gnorm 0.91 tok/s 812 dev 0.48/0.50 ram 0.31/0.38 nvme r1.9 w1.1 GB/s stall 7% "
      "eta ";
  EXPECT_EQ(out.str(), "step 1/4" + rest + "0:30\n" + "step 2/4" + rest + "0:20\n" + "step 4/4" + rest + "0:00\n");
}

TEST(Progress, RedrawsOneLineOnATerminalAndEndsItOnce) {
  std::ostringstream out;
  {
    Progress progress(out, terminal_of(40), 100);
    engine::StepReport r = report();
    r.total_steps = 10;
    for (r.step = 8; r.step <= 9; ++r.step) progress.step(r);
    progress.finish();
  }

  EXPECT_EQ(out.str(),
            "\r\x1b[Kstep 8/10 loss 1.832 tok/s 812 eta 0:20"
            "\r\x1b[Kstep 9/10 loss 1.832 tok/s 812 eta 0:10\n");
}

TEST(Progress, AMessageStandsAboveTheBar) {
  std::ostringstream out;
  Progress progress(out, terminal_of(40), 1);
  progress.step(report());
  const std::string drawn = bar_line(report(), 13800, 40, Terminal::Colour::Off);

  out.str("");
  progress.message("saved");

  EXPECT_EQ(out.str(), "\r\x1b[Ksaved\n" + drawn);
}

TEST(Progress, AnEvaluationIsALine) {
  std::ostringstream out;
  Progress progress(out, Terminal{}, 1);

  progress.evaluation({.step = 5, .epoch = 0.5, .loss = 2, .tokens = 77, .seconds = 61});

  EXPECT_EQ(out.str(), "eval step 5 ep 0.50 loss 2.000 ppl 7.39 tokens 77 in 1:01\n");
}

TEST(Progress, TheRemainingTimeForgetsASlowFirstStep) {
  std::ostringstream out;
  Progress progress(out, Terminal{}, 1);
  engine::StepReport r = report();
  r.total_steps = 101;
  r.step = 1;
  r.step_seconds = 100;
  progress.step(r);
  r.step_seconds = 1;
  for (r.step = 2; r.step <= 41; ++r.step) progress.step(r);

  const std::string text = out.str();
  EXPECT_EQ(text.substr(text.rfind("eta ")), "eta 1:01\n");  // 60 steps of 1 s, and 99 x 0.8^40 of the first
}

TEST(Progress, ZeroLoggingStepsAreRefused) {
  std::ostringstream out;
  EXPECT_THROW(Progress(out, Terminal{}, 0), ContractViolation);
}

// A pseudo-terminal: its slave end is the screen.
class TerminalTest : public testing::Test {
 protected:
  void SetUp() override {
    master_ = posix_openpt(O_RDWR | O_NOCTTY);
    ASSERT_GE(master_, 0);
    ASSERT_EQ(grantpt(master_), 0);
    ASSERT_EQ(unlockpt(master_), 0);
    slave_ = open(ptsname(master_), O_RDWR | O_NOCTTY);
    ASSERT_GE(slave_, 0);
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
  }
  void TearDown() override {
    close(slave_);
    close(master_);
  }

  int master_ = -1;
  int slave_ = -1;
};

TEST_F(TerminalTest, APipeIsNone) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);

  EXPECT_EQ(Terminal::of(ends[1]).kind, Terminal::Kind::Pipe);

  close(ends[0]);
  close(ends[1]);
}

TEST_F(TerminalTest, AScreenIsInteractiveAndColoured) {
  EXPECT_EQ(Terminal::of(slave_).kind, Terminal::Kind::Interactive);
  EXPECT_EQ(Terminal::of(slave_).colour, Terminal::Colour::On);
}

TEST_F(TerminalTest, NoColorIsRespectedWhereItIsNotEmpty) {
  setenv("NO_COLOR", "1", 1);
  EXPECT_EQ(Terminal::of(slave_).colour, Terminal::Colour::Off);
  setenv("NO_COLOR", "", 1);
  EXPECT_EQ(Terminal::of(slave_).colour, Terminal::Colour::On);
}

TEST_F(TerminalTest, ADumbScreenGetsPlainLines) {
  setenv("TERM", "dumb", 1);
  EXPECT_EQ(Terminal::of(slave_).kind, Terminal::Kind::Pipe);
}

TEST_F(TerminalTest, FollowsTheWidthOfTheWindow) {
  const Terminal terminal = Terminal::of(slave_);
  EXPECT_EQ(terminal.columns(), 80);  // a new pseudo-terminal tells no size
  winsize size = {};
  size.ws_col = 33;
  ASSERT_EQ(ioctl(slave_, TIOCSWINSZ, &size), 0);
  EXPECT_EQ(terminal.columns(), 33);
}

}  // namespace
}  // namespace strata::cli
