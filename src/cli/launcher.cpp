#include "cli/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "cli/exit_code.h"
#include "cli/line_relay.h"
#include "cli/rank_process.h"
#include "cli/signal_pipe.h"
#include "core/error.h"

namespace strata::cli {
namespace {

using Clock = std::chrono::steady_clock;

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {  // somebody made our output non-blocking
      pollfd ready{fd, POLLOUT, 0};
      ::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      throw IoError({errno, "write", fd == STDOUT_FILENO ? "standard output" : "standard error", 0, 0, {}});
    }
  }
}

std::string name_of_signal(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return "signal " + std::to_string(signal) + (name != nullptr ? std::string(" (SIG") + name + ")" : "");
}

RankCommand command_of(const LaunchOptions& options, std::size_t rank) {
  Environment environment = options.environment;
  const std::string world = std::to_string(options.ranks), number = std::to_string(rank);
  environment["RANK"] = environment["LOCAL_RANK"] = number;
  environment["WORLD_SIZE"] = environment["LOCAL_WORLD_SIZE"] = world;
  environment["MASTER_ADDR"] = "127.0.0.1";
  environment["MASTER_PORT"] = std::to_string(options.store_port);
  environment["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  environment["TORCHELASTIC_RESTART_COUNT"] = "0";
  RankCommand command{options.program, options.argv, {}};
  for (const auto& [name, value] : environment) command.variables.push_back(name + "=" + value);
  return command;
}

// A rank, and what it has said so far.
struct Rank {
  Rank(const LaunchOptions& options, std::size_t number)
      : process(command_of(options, number)),
        out_to(number == 0 ? options.out : options.err),
        out(number == 0 ? "" : "[rank " + std::to_string(number) + "] "),
        err("[rank " + std::to_string(number) + "] ") {
    for (const int fd : {process.out(), process.err()}) {
      ::fcntl(fd, F_SETFL, O_NONBLOCK);  // fails only for a descriptor that is none
    }
  }

  RankProcess process;
  int out_to;
  LineRelay out, err;
  bool given_up = false;  // killed by us because it could not end by itself
};

// See launch_ranks().
class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options) : options_(options) {
    for (std::size_t rank = 0; rank < options.ranks; ++rank) ranks_.emplace_back(options, rank);
  }

  int run() {
    while (anyone_runs()) {
      wait();
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) pass_on(rank);
      while (const int signal = signals_.take()) {
        if (signal != SIGCHLD) on_stop(signal);
      }
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        if (ranks_[rank].process.running() && ranks_[rank].process.try_wait()) on_end(rank);
      }
      end_the_rest();
    }
    return result();
  }

 private:
  bool anyone_runs() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.process.running(); });
  }

  // For output, a signal (the end of a rank is one) or the next deadline.
  void wait() {
    std::vector<pollfd> sources{{signals_.fd(), POLLIN, 0}};
    for (const Rank& rank : ranks_) {
      if (rank.process.out() >= 0) sources.push_back({rank.process.out(), POLLIN, 0});
      if (rank.process.err() >= 0) sources.push_back({rank.process.err(), POLLIN, 0});
    }
    int timeout = -1;
    if (next_step_at_) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next_step_at_ - Clock::now()).count();
      timeout = static_cast<int>(std::max<std::int64_t>(left, 0));
    }
    if (::poll(sources.data(), sources.size(), timeout) < 0 && errno != EINTR) {
      throw IoError({errno, "poll", "the output of the ranks", 0, 0, {}});
    }
  }

  void pass_on(std::size_t number) {
    Rank& rank = ranks_[number];
    if (relay(rank.process.out(), rank.out, rank.out_to)) rank.process.close_out();
    if (relay(rank.process.err(), rank.err, options_.err)) rank.process.close_err();
  }

  // Whether this was the end of it.
  bool relay(int from, LineRelay& lines, int to) {
    if (from < 0) return false;
    for (;;) {
      const ssize_t n = ::read(from, buffer_.data(), buffer_.size());
      if (n > 0) {
        write_all(to, lines.take({buffer_.data(), static_cast<std::size_t>(n)}));
      } else if (n == 0) {
        write_all(to, lines.finish());
        return true;
      } else if (errno != EINTR) {
        return false;  // EAGAIN: no more for now
      }
    }
  }

  void say(const std::string& text) { write_all(options_.err, "strata: " + text + "\n"); }

  void send_to_all(int signal) {
    for (const Rank& rank : ranks_) rank.process.send(signal);
  }

  void on_stop(int signal) {
    if (stop_signal_ != 0) {
      send_to_all(SIGKILL);
      killed_ = true;
      return;
    }
    stop_signal_ = signal;
    say(name_of_signal(signal) + " goes to all ranks; a second one kills them");
    send_to_all(signal);
  }

  void on_end(std::size_t rank) {
    pass_on(rank);  // its last words come before ours
    close_output(ranks_[rank]);
    if (ranks_[rank].given_up) return;
    const int status = ranks_[rank].process.status();
    if (WIFEXITED(status)) {
      const int code = WEXITSTATUS(status);
      if (code == exit_code_of_signal(SIGINT) || code == exit_code_of_signal(SIGTERM)) stop_code_ = code;
      if (code == kDone || code == stop_code_) return;
      on_failure(rank, code, "ended with exit code " + std::to_string(code), code != kDeviceFailed);
    } else if (WTERMSIG(status) == stop_signal_) {
      on_failure(rank, exit_code_of_signal(stop_signal_), "was stopped by " + name_of_signal(stop_signal_), true);
    } else {
      std::string reason = "was killed by " + name_of_signal(WTERMSIG(status));
      if (WTERMSIG(status) == SIGKILL) {
        reason +=
            ", by somebody or by the kernel for want of memory (dmesg tells; strata.budgets.host lowers the need)";
      }
      on_failure(rank, kDeviceFailed, reason, true);
    }
  }

  // What a stray child of a rank holds open stays open for nobody.
  void close_output(Rank& rank) {
    write_all(rank.out_to, rank.out.finish());
    write_all(options_.err, rank.err.finish());
    rank.process.close_out();
    rank.process.close_err();
  }

  // `own_cause`: not a collective that another's end made fail.
  void on_failure(std::size_t rank, int exit_code, const std::string& what, bool own_cause) {
    if (killed_ || terminated_) return;  // that was us
    const std::string name = "rank " + std::to_string(rank);
    const ReportedFailure failure{exit_code, name + " failed first: " + what};
    if (first_) {
      if (own_cause && !first_has_own_cause_) name_first(failure, own_cause);
      return;
    }
    say(name + " " + what + (anyone_runs() ? "; ending the others" : ""));
    next_step_at_ = Clock::now() + options_.until_term;
    name_first(failure, own_cause);
    give_up_stopped_ranks();
    const std::optional<ReportedFailure> reported = options_.failures.first ? options_.failures.first() : std::nullopt;
    if (!reported) {
      if (options_.failures.report) options_.failures.report(failure);
    } else if (reported->reason.starts_with(name + " failed first: ")) {
      first_->reason = reported->reason;  // it knew more than its exit code
    } else if (!own_cause || reported->exit_code != kDeviceFailed) {
      name_first(*reported, reported->exit_code != kDeviceFailed);
    }
  }

  void name_first(const ReportedFailure& failure, bool own_cause) {
    first_ = failure;
    first_has_own_cause_ = own_cause;
  }

  // They hear of nothing, so waiting for them is in vain.
  void give_up_stopped_ranks() {
    for (Rank& rank : ranks_) {
      if (!rank.process.stopped()) continue;
      rank.given_up = true;
      rank.process.send(SIGKILL);
    }
  }

  // After a failure, when time is up.
  void end_the_rest() {
    if (!next_step_at_ || Clock::now() < *next_step_at_ || !anyone_runs()) return;
    if (!terminated_) {
      terminated_ = true;
      send_to_all(SIGTERM);
      next_step_at_ = Clock::now() + options_.until_kill;
    } else {
      send_to_all(SIGKILL);
      next_step_at_.reset();
    }
  }

  int result() {
    if (killed_) return exit_code_of_signal(stop_signal_);
    if (!first_) return stop_code_;
    say("error: " + first_->reason);
    return first_->exit_code;
  }

  const LaunchOptions& options_;
  const SignalPipe signals_;  // before the ranks: none may end unseen
  std::vector<Rank> ranks_;
  std::array<char, 65536> buffer_{};
  std::optional<ReportedFailure> first_;
  bool first_has_own_cause_ = false;
  std::optional<Clock::time_point> next_step_at_;
  bool terminated_ = false, killed_ = false;  // SIGTERM or SIGKILL came from us
  int stop_signal_ = 0;                       // the first SIGINT or SIGTERM
  int stop_code_ = kDone;
};

}  // namespace

int launch_ranks(const LaunchOptions& options) {
  return Launcher(options).run();
}

}  // namespace strata::cli
