#include "cli/rank_process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "core/error.h"

namespace strata::cli {
namespace {

RankCommand shell(const std::string& script) {
  return {"/bin/sh", {"sh", "-c", script}, {"PATH=/usr/bin:/bin", "COLOUR=blue"}};
}

std::string all_of(int fd) {
  std::string text;
  std::array<char, 256> buffer{};
  for (ssize_t n = 0; (n = ::read(fd, buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<std::size_t>(n));
  }
  return text;
}

void wait_for(RankProcess& process) {
  while (!process.try_wait()) std::this_thread::yield();
}

TEST(RankProcess, GivesItsOutputAndItsErrorsApart) {
  RankProcess process(shell("echo $COLOUR; echo red >&2"));
  EXPECT_EQ(all_of(process.out()), "blue\n");
  EXPECT_EQ(all_of(process.err()), "red\n");
  wait_for(process);
  EXPECT_EQ(process.status(), 0);
  EXPECT_FALSE(process.running());
}

TEST(RankProcess, LeadsAGroupOfItsOwn) {
  RankProcess process(shell("cut -d ' ' -f 5 /proc/$$/stat; echo $$"));
  const std::string text = all_of(process.out());
  EXPECT_EQ(text.substr(0, text.find('\n')), text.substr(text.find('\n') + 1, text.find('\n')));
  EXPECT_NE(text.substr(0, text.find('\n')), std::to_string(::getpgrp()));
}

TEST(RankProcess, IsNoLongerRunningOnceItHasEnded) {
  RankProcess process(shell("read line"));  // of /dev/null
  wait_for(process);
  EXPECT_EQ(WEXITSTATUS(process.status()), 1);
  EXPECT_TRUE(process.try_wait());
  process.send(SIGKILL);  // to nobody
}

TEST(RankProcess, GetsSignalsAlthoughThisProcessBlocksThem) {
  sigset_t term, before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &term, &before);
  RankProcess process(shell("echo ready; sleep 600"));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  std::array<char, 6> ready{};
  ASSERT_EQ(::read(process.out(), ready.data(), ready.size()), 6);

  process.send(SIGTERM);

  wait_for(process);
  EXPECT_TRUE(WIFSIGNALED(process.status()));
  EXPECT_EQ(WTERMSIG(process.status()), SIGTERM);
}

TEST(RankProcess, KnowsWhetherItIsStopped) {
  // A shell that is stopped while the process it makes has not become `sleep` yet waits for that without being stopped.
  RankProcess process(shell("echo ready; exec sleep 600"));
  std::array<char, 6> ready{};
  ASSERT_EQ(::read(process.out(), ready.data(), ready.size()), 6);
  EXPECT_FALSE(process.stopped());
  process.send(SIGSTOP);
  while (!process.stopped()) std::this_thread::yield();
  EXPECT_FALSE(process.try_wait());
  process.send(SIGCONT);
  while (process.stopped()) std::this_thread::yield();
  process.send(SIGKILL);
  wait_for(process);
  EXPECT_FALSE(process.stopped());
}

// Its pipes reach their end, so nobody is left who holds them.
TEST(RankProcess, TakesWhatItHasStartedAlong) {
  RankProcess process(shell("sleep 600 & sleep 600 & exit 3"));
  wait_for(process);
  EXPECT_EQ(WEXITSTATUS(process.status()), 3);
  EXPECT_EQ(all_of(process.out()), "");
}

TEST(RankProcess, IsKilledByTheDestructor) {
  pid_t pid = -1;
  {
    const RankProcess process(shell("trap '' INT TERM; sleep 600"));
    pid = process.pid();
    EXPECT_EQ(::kill(pid, 0), 0);
  }
  EXPECT_EQ(::kill(pid, 0), -1);
}

TEST(RankProcess, ReportsAProgramThatIsNotThere) {
  EXPECT_THROW(RankProcess({"/nowhere", {"nowhere"}, {}}), IoError);
}

}  // namespace
}  // namespace strata::cli
