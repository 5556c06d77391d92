#include "rank_process.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <string>
#include <type_traits>

#include "core/error.h"
#include "core/log.h"

namespace strata::bench {
namespace {

// False at the end of the stream. Messages are far smaller than a socket's buffer.
template <typename Message>
bool receive(int socket, Message& message) {
  static_assert(std::is_trivially_copyable_v<Message>);
  return ::recv(socket, &message, sizeof(message), MSG_WAITALL) == static_cast<ssize_t>(sizeof(message));
}

template <typename Message>
bool send(int socket, const Message& message) {
  static_assert(std::is_trivially_copyable_v<Message>);
  return ::send(socket, &message, sizeof(message), MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(message));
}

[[noreturn]] void work_until_the_end(int socket, const std::function<RankProcess::Work()>& make) {
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    const RankProcess::Work work = make();
    if (!send(socket, RankResult{})) std::_Exit(1);
    for (RankTask task; receive(socket, task);) {
      if (!send(socket, work(task))) break;
    }
  } catch (const std::exception& error) {
    log::error(error.what());
    std::_Exit(1);
  }
  std::_Exit(0);
}

}  // namespace

RankProcess::RankProcess(const std::function<Work()>& make) {
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_.data()) != 0) {
    throw IoError({errno, "socketpair", "bench", 0, 0, ""});
  }
  pid_ = ::fork();
  if (pid_ == 0) work_until_the_end(ends_[1], make);
  ::close(ends_[1]);
  if (pid_ < 0) {
    const int error = errno;
    ::close(ends_[0]);
    throw IoError({error, "fork", "bench", 0, 0, ""});
  }
}

RankProcess::~RankProcess() {
  ::close(ends_[0]);
  (void)::kill(pid_, SIGKILL);  // its swap files have no names
  (void)::waitpid(pid_, nullptr, 0);
}

void RankProcess::start(const RankTask& task) {
  if (!send(ends_[0], task)) throw Error("a process of the bench has ended");
}

RankResult RankProcess::result() {
  RankResult result;
  if (!receive(ends_[0], result)) throw Error("a process of the bench has ended");
  return result;
}

}  // namespace strata::bench
