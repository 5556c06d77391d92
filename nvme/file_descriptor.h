// RAII for a file descriptor.
#pragma once

#include <unistd.h>

#include <utility>

namespace strata::nvme {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);  // the file is unlinked or a counter: nothing could be done about an error here
  }
  int get() const noexcept { return fd_; }

 private:
  int fd_ = -1;
};

}  // namespace strata::nvme
