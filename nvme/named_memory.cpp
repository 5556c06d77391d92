#include "nvme/named_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>

#include "core/error.h"

namespace strata::nvme {
namespace fs = std::filesystem;
namespace {

constexpr int kAttempts = 1000;

struct Address {
  sockaddr_un socket{};
  socklen_t bytes = 0;
};

// unix(7): an abstract name begins with a zero byte and ends where the length says.
Address abstract_address(const std::string& name) {
  Address address;
  address.socket.sun_family = AF_UNIX;
  STRATA_EXPECTS(name.size() < sizeof(address.socket.sun_path), "the name " + name + " is too long");
  std::memcpy(address.socket.sun_path + 1, name.data(), name.size());
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

[[noreturn]] void fail(const char* op, const std::string& name, int error, const std::string& hint = {}) {
  throw IoError({error, op, name, 0, 0, hint});
}

FileDescriptor make_memory(const std::string& name, std::size_t bytes) {
  FileDescriptor memory(::memfd_create(name.c_str(), MFD_CLOEXEC));
  if (memory.get() < 0) fail("memfd_create", name, errno);
  if (::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) fail("ftruncate", name, errno);
  return memory;
}

// The process that listens at the other end. unix(7): for a stream socket, what it was when it called listen().
pid_t owner_of(const FileDescriptor& socket, const std::string& name) {
  ucred owner{};
  socklen_t bytes = sizeof(owner);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &owner, &bytes) != 0) fail("getsockopt", name, errno);
  if (owner.uid != ::geteuid()) fail("find", name, EPERM, "another user has taken the name");
  if (owner.pid == 0) fail("find", name, ESRCH, "it belongs to a process that cannot be seen from here");
  return owner.pid;
}

// The memory of that name that `owner` has open, opened anew: the locks of one open file are one holder's. Nothing when
// the process has ended meanwhile.
FileDescriptor open_memory_of(pid_t owner, const std::string& name, std::size_t bytes) {
  const fs::path folder = "/proc/" + std::to_string(owner) + "/fd";
  std::error_code error;
  for (fs::directory_iterator each(folder, error), end; !error && each != end; each.increment(error)) {
    std::error_code closed;  // meanwhile
    if (fs::read_symlink(each->path(), closed) != "/memfd:" + name + " (deleted)") continue;
    FileDescriptor memory(::open(each->path().c_str(), O_RDWR | O_CLOEXEC));
    struct stat info {};
    if (memory.get() < 0 || ::fstat(memory.get(), &info) != 0) continue;
    if (info.st_size == static_cast<off_t>(bytes)) return memory;
  }
  if (error && error != std::errc::no_such_file_or_directory) fail("search", folder.string(), error.value());
  return {};
}

}  // namespace

NamedMemory::NamedMemory(const std::string& name, std::size_t bytes) : bytes_(bytes) {
  make_or_find(name, bytes);
  data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
  if (data_ == MAP_FAILED) fail("mmap", name, errno);
}

NamedMemory::~NamedMemory() {
  (void)::munmap(data_, bytes_);  // cannot fail for what mmap gave
}

void NamedMemory::make_or_find(const std::string& name, std::size_t bytes) {
  const Address address = abstract_address(name);
  const auto* const where = reinterpret_cast<const sockaddr*>(&address.socket);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket.get() < 0) fail("socket", name, errno);
    if (::bind(socket.get(), where, address.bytes) == 0) {
      // Before listen(), from which on it can be found.
      memory_ = make_memory(name, bytes);
      // Nobody ever accepts: that somebody listens is all that others ask.
      if (::listen(socket.get(), SOMAXCONN) != 0) fail("listen", name, errno);
      name_ = std::move(socket);
      return;
    }
    if (errno != EADDRINUSE) fail("bind", name, errno);
    if (::connect(socket.get(), where, address.bytes) == 0) {
      memory_ = open_memory_of(owner_of(socket, name), name, bytes);
      if (memory_.get() >= 0) return;
    } else if (errno != ECONNREFUSED) {
      fail("connect", name, errno);
    }
    // Its owner does not listen yet, or has just ended.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  fail("find", name, ETIMEDOUT, "a process has the name and not the memory");
}

bool NamedMemory::claim(std::size_t index) {
  return lock(index, F_WRLCK);
}

void NamedMemory::give_up(std::size_t index) {
  (void)lock(index, F_UNLCK);  // cannot fail for what is held
}

bool NamedMemory::lock(std::size_t index, short type) {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(index);
  range.l_len = 1;
  // fcntl(2), open file description locks: held by this open file, whoever the process, and gone when it is closed.
  return ::fcntl(memory_.get(), F_OFD_SETLK, &range) == 0;
}

}  // namespace strata::nvme
