// ChildProcess: a function in a process of its own.
#pragma once

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <stdexcept>

namespace strata::test {

// Forks, so make all of them before the test has threads. The child ends with 0 when `work` returns, 1 when it throws,
// and by SIGALRM when it hangs.
class ChildProcess {
 public:
  explicit ChildProcess(const std::function<void()>& work) : pid_(::fork()) {
    if (pid_ < 0) throw std::runtime_error("cannot fork");
    if (pid_ > 0) return;
    ::alarm(180);
    try {
      work();
      std::_Exit(0);
    } catch (const std::exception& error) {
      std::cerr << "in a child process: " << error.what() << std::endl;
      std::_Exit(1);
    }
  }
  ChildProcess(ChildProcess&& other) noexcept : pid_(other.pid_) { other.pid_ = -1; }
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess() {
    kill();
    wait();
  }

  void kill() const {
    if (pid_ > 0) (void)::kill(pid_, SIGKILL);  // it may have ended
  }
  // As waitpid() gives it: 0 for a child whose work was done.
  int wait() {
    if (pid_ > 0 && ::waitpid(pid_, &status_, 0) != pid_) throw std::runtime_error("cannot wait for a child");
    pid_ = -1;
    return status_;
  }

 private:
  pid_t pid_;
  int status_ = -1;
};

}  // namespace strata::test
