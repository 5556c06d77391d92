#include "cli/signal_pipe.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "core/error.h"

namespace strata::cli {
namespace {

bool readable(const SignalPipe& signals) {
  pollfd source{signals.fd(), POLLIN, 0};
  return ::poll(&source, 1, 0) == 1;
}

TEST(SignalPipe, IsEmptyAtFirst) {
  const SignalPipe signals;
  EXPECT_FALSE(readable(signals));
  EXPECT_EQ(signals.take(), 0);
}

TEST(SignalPipe, KeepsSignalsInTheirOrder) {
  const SignalPipe signals;
  raise(SIGTERM);
  raise(SIGINT);
  raise(SIGINT);

  EXPECT_TRUE(readable(signals));
  EXPECT_EQ(signals.take(), SIGTERM);
  EXPECT_EQ(signals.take(), SIGINT);
  EXPECT_EQ(signals.take(), SIGINT);
  EXPECT_EQ(signals.take(), 0);
  EXPECT_FALSE(readable(signals));
}

TEST(SignalPipe, TakesSignalsOfEveryThread) {
  const SignalPipe signals;
  std::thread([] { raise(SIGINT); }).join();
  EXPECT_EQ(signals.take(), SIGINT);
}

TEST(SignalPipe, RestoresWhatWasThere) {
  struct sigaction ignored = {}, before = {}, after = {};
  ignored.sa_handler = SIG_IGN;
  sigaction(SIGTERM, &ignored, &before);
  { const SignalPipe signals; }
  sigaction(SIGTERM, &before, &after);
  EXPECT_EQ(after.sa_handler, SIG_IGN);
}

TEST(SignalPipe, IsOneAtATime) {
  const SignalPipe signals;
  EXPECT_THROW(SignalPipe(), ContractViolation);
}

}  // namespace
}  // namespace strata::cli
