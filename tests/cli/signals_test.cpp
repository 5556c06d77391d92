#include "cli/signals.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "core/error.h"

namespace strata::cli {
namespace {

// Runs `body` in a process of its own, because a signal with its default effect ends it; returns the status of waitpid.
int status_of_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(StopSignals, NothingIsRequestedAtFirst) {
  const StopSignals signals;

  EXPECT_FALSE(signals.requested());
  EXPECT_EQ(signals.received(), 0);
}

TEST(StopSignals, TheFirstSignalIsRememberedWithItsNumber) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const StopSignals signals;
    ASSERT_EQ(raise(signal), 0);

    EXPECT_TRUE(signals.requested());
    EXPECT_EQ(signals.received(), signal);
  }
}

TEST(StopSignals, TheSecondSignalOfEitherKindEndsTheProcess) {
  for (const int first : {SIGINT, SIGTERM}) {
    for (const int second : {SIGINT, SIGTERM}) {
      const int status = status_of_child([&] {
        const StopSignals signals;
        raise(first);
        raise(second);
      });

      ASSERT_TRUE(WIFSIGNALED(status));
      EXPECT_EQ(WTERMSIG(status), second);
    }
  }
}

TEST(StopSignals, TheDestructorRestoresWhatWasThere) {
  struct sigaction ignored = {};
  ignored.sa_handler = SIG_IGN;
  struct sigaction original = {};
  ASSERT_EQ(sigaction(SIGINT, &ignored, &original), 0);

  {
    const StopSignals signals;
    ASSERT_EQ(raise(SIGINT), 0);
  }

  struct sigaction after = {};
  ASSERT_EQ(sigaction(SIGINT, &original, &after), 0);
  EXPECT_EQ(after.sa_handler, SIG_IGN);
}

TEST(StopSignals, ANewObjectForgetsTheOldSignal) {
  {
    const StopSignals signals;
    ASSERT_EQ(raise(SIGTERM), 0);
  }
  const StopSignals signals;

  EXPECT_FALSE(signals.requested());
}

TEST(StopSignals, TwoAtATimeAreRefusedAndTheFirstStaysInForce) {
  const StopSignals signals;

  EXPECT_THROW(StopSignals(), ContractViolation);
  ASSERT_EQ(raise(SIGTERM), 0);
  EXPECT_EQ(signals.received(), SIGTERM);
}

}  // namespace
}  // namespace strata::cli
