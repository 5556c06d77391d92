#include "cli/signal_pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "core/error.h"

namespace strata::cli {
namespace {

// Mutable and global against the rules of the project: a handler reaches nothing but static storage.
std::atomic<int> writer{-1};
static_assert(std::atomic<int>::is_always_lock_free, "a handler may use it (signal-safety(7))");

void on_signal(int signal) {
  const int saved_errno = errno;
  const auto byte = static_cast<unsigned char>(signal);
  // Relaxed: nothing else is published with it. A full pipe holds 64 Ki signals that nobody has looked at: one more
  // changes nothing.
  [[maybe_unused]] const ssize_t written = ::write(writer.load(std::memory_order_relaxed), &byte, 1);
  errno = saved_errno;
}

}  // namespace

SignalPipe::SignalPipe() {
  STRATA_EXPECTS(writer.load() < 0, "only one SignalPipe at a time");
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) throw IoError({errno, "pipe", "", 0, 0, {}});
  reader_ = ends[0];
  writer.store(ends[1]);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &action, &previous_[i]);  // fails only for a signal that does not exist
  }
}

SignalPipe::~SignalPipe() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous_[i], nullptr);
  ::close(writer.exchange(-1));
  ::close(reader_);
}

int SignalPipe::take() const {
  unsigned char signal = 0;
  while (::read(reader_, &signal, 1) < 0) {
    if (errno != EINTR) return 0;  // EAGAIN: none waits
  }
  return signal;
}

}  // namespace strata::cli
