// SIGINT and SIGTERM as a question that a training loop can ask between steps.
#pragma once

#include <csignal>

namespace strata::cli {

// From construction to destruction the first SIGINT or SIGTERM is only remembered; a second one, of either kind, has
// its default effect, so that a run that hangs while it saves can still be ended. The destructor restores what was
// there. At most one object at a time. Threads: construct and destroy on the main thread; ask from any thread.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // SIGINT or SIGTERM once one has arrived, else 0.
  int received() const noexcept;
  bool requested() const noexcept { return received() != 0; }

 private:
  struct sigaction previous_int_ = {};
  struct sigaction previous_term_ = {};
};

}  // namespace strata::cli
