// Signals as something that poll(2) can wait for.
#pragma once

#include <csignal>

#include <array>

namespace strata::cli {

// From construction to destruction SIGINT, SIGTERM and SIGCHLD are put into a pipe instead of having their effect,
// whichever thread they arrive on. The destructor restores what was there. At most one object at a time; construct,
// ask and destroy on one thread.
class SignalPipe {
 public:
  SignalPipe();
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  // Readable when a signal waits.
  int fd() const { return reader_; }
  // The oldest signal that waits, else 0. A second SIGCHLD beside one that waits may be left out.
  int take() const;

 private:
  static constexpr std::array<int, 3> kSignals{SIGINT, SIGTERM, SIGCHLD};

  int reader_ = -1;
  std::array<struct sigaction, kSignals.size()> previous_{};
};

}  // namespace strata::cli
