#include "cli/signals.h"

#include <atomic>
#include <cerrno>

#include "core/error.h"

namespace strata::cli {
namespace {

// Mutable and global against the rules of the project: a handler reaches nothing but static storage.
constexpr int kNotInstalled = -1;
std::atomic<int> received_signal{kNotInstalled};
static_assert(std::atomic<int>::is_always_lock_free, "a handler may use it (signal-safety(7))");

void restore_default(int signal) {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);  // fails only for a signal that does not exist
}

void on_signal(int signal) {
  const int saved_errno = errno;
  // sigaction() is async-signal-safe. Both are reset, because people try Ctrl-C first and kill next.
  restore_default(SIGINT);
  restore_default(SIGTERM);
  // Relaxed: nothing else is published with the flag.
  received_signal.store(signal, std::memory_order_relaxed);
  errno = saved_errno;
}

struct sigaction install(int signal) {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // libraries that do not expect EINTR must not see one
  sigemptyset(&action.sa_mask);
  sigaddset(&action.sa_mask, SIGINT);
  sigaddset(&action.sa_mask, SIGTERM);
  struct sigaction previous = {};
  if (sigaction(signal, &action, &previous) != 0) {
    throw IoError({.errno_value = errno, .op = "sigaction", .path = "", .hint = ""});
  }
  return previous;
}

}  // namespace

StopSignals::StopSignals() {
  int expected = kNotInstalled;
  STRATA_EXPECTS(received_signal.compare_exchange_strong(expected, 0), "only one StopSignals at a time");
  previous_int_ = install(SIGINT);
  previous_term_ = install(SIGTERM);
}

StopSignals::~StopSignals() {
  sigaction(SIGINT, &previous_int_, nullptr);  // fails only for a signal that does not exist
  sigaction(SIGTERM, &previous_term_, nullptr);
  received_signal.store(kNotInstalled);
}

int StopSignals::received() const noexcept {
  return received_signal.load(std::memory_order_relaxed);
}

}  // namespace strata::cli
