#include "cli/rank_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "core/error.h"

namespace strata::cli {
namespace {

// Two descriptors that close themselves unless released.
struct Pipe {
  std::array<int, 2> ends{-1, -1};

  explicit Pipe(const std::string& program) {
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw IoError({errno, "pipe", program, 0, 0, {}});
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    for (const int fd : ends) {
      if (fd >= 0) ::close(fd);
    }
  }
  void close_writer() { ::close(std::exchange(ends[1], -1)); }
  int release_reader() { return std::exchange(ends[0], -1); }
};

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));  // execve takes char**
  pointers.push_back(nullptr);
  return pointers;
}

// In the child: only what signal-safety(7) allows, because other threads of this process may have held locks.
[[noreturn]] void become(const char* program, char* const* argv, char* const* variables, pid_t parent,
                         std::array<int, 3> streams, int errors) {
  const auto give_up = [&] {
    const int error = errno;
    if (::write(errors, &error, sizeof error) < 0) ::_exit(126);  // whoever would read it is gone
    ::_exit(127);
  };
  if (::setpgid(0, 0) != 0) give_up();
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up();
  if (::getppid() != parent) ::_exit(127);  // ended before the line above
  for (int i = 0; i < 3; ++i) {
    if (::dup2(streams[static_cast<std::size_t>(i)], i) < 0) give_up();
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(program, argv, variables);
  give_up();
  ::_exit(127);
}

}  // namespace

RankProcess::RankProcess(const RankCommand& command) {
  Pipe out(command.program), err(command.program), errors(command.program);
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null < 0) throw IoError({errno, "open", "/dev/null", 0, 0, {}});
  const std::vector<char*> argv = pointers_to(command.argv), variables = pointers_to(command.variables);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) {
    become(command.program.c_str(), argv.data(), variables.data(), parent, {null, out.ends[1], err.ends[1]},
           errors.ends[1]);
  }
  const int fork_error = errno;
  ::close(null);
  if (pid_ < 0) throw IoError({fork_error, "start", command.program, 0, 0, {}});
  ::setpgid(pid_, pid_);  // as the child does, whichever comes first; fails when it has begun its program already
  errors.close_writer();
  int error = 0;
  ssize_t got = 0;
  while ((got = ::read(errors.ends[0], &error, sizeof error)) < 0 && errno == EINTR) {
  }
  if (got == static_cast<ssize_t>(sizeof error)) {
    while (::waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
    }
    throw IoError({error, "start", command.program, 0, 0, {}});
  }
  out_ = out.release_reader();
  err_ = err.release_reader();
}

RankProcess::RankProcess(RankProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      out_(std::exchange(other.out_, -1)),
      err_(std::exchange(other.err_, -1)),
      status_(other.status_) {}

RankProcess::~RankProcess() {
  close_out();
  close_err();
  if (!running()) return;
  send(SIGKILL);
  while (::waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
  }
}

void RankProcess::close_out() {
  if (out_ >= 0) ::close(std::exchange(out_, -1));
}
void RankProcess::close_err() {
  if (err_ >= 0) ::close(std::exchange(err_, -1));
}

void RankProcess::send(int signal) const {
  if (running()) ::kill(-pid_, signal);  // fails only when nobody is left
}

bool RankProcess::stopped() const {
  siginfo_t info = {};
  if (!running()) return false;
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid_;
}

bool RankProcess::try_wait() {
  if (!running()) return true;
  siginfo_t info = {};
  // Left unreaped until its group is gone: so long the number belongs to nobody else.
  while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
    if (errno != EINTR) throw IoError({errno, "wait for", "a rank", 0, 0, {}});
  }
  if (info.si_pid == 0) return false;
  send(SIGKILL);
  while (::waitpid(pid_, &status_, 0) < 0) {
    if (errno != EINTR) throw IoError({errno, "wait for", "a rank", 0, 0, {}});
  }
  pid_ = -1;
  return true;
}

}  // namespace strata::cli
