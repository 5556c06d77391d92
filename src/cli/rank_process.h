// One rank as a child process whose output comes through pipes.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace strata::cli {

struct RankCommand {
  std::string program;                 // path
  std::vector<std::string> argv;       // argv[0] included
  std::vector<std::string> variables;  // "NAME=value", the whole environment
};

// Owns the process and the reading ends of its pipes. The child leads a process group of its own, so that the
// terminal's Ctrl-C reaches it only through send() and its own children can be ended with it; it reads /dev/null, and
// the kernel kills it when the thread that started it ends. The destructor kills the group and waits. One thread.
class RankProcess {
 public:
  // Throws: IoError when it cannot be started.
  explicit RankProcess(const RankCommand& command);
  ~RankProcess();
  RankProcess(RankProcess&& other) noexcept;
  RankProcess& operator=(RankProcess&&) = delete;

  int out() const { return out_; }  // -1 once closed
  int err() const { return err_; }
  void close_out();
  void close_err();

  bool running() const { return pid_ > 0; }
  // By SIGSTOP, say: it answers nothing but SIGKILL and SIGCONT.
  bool stopped() const;
  // To the whole group. Does nothing once it has ended.
  void send(int signal) const;
  // Whether it has ended by now. What is left of its group is killed then.
  bool try_wait();
  // Once ended: as waitpid(2) gives it.
  int status() const { return status_; }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  int status_ = 0;
};

}  // namespace strata::cli
