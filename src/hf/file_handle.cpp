#include "hf/file_handle.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/bytes.h"
#include "core/error.h"

namespace strata::hf {
namespace {

// The kernel cuts one transfer at 2 GiB - 4 KiB; asking for less keeps every call whole in the common case.
constexpr std::size_t kMaxTransferBytes = std::size_t{1} << 30;

}  // namespace

FileHandle FileHandle::open_for_reading(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    const bool dangling = std::filesystem::is_symlink(std::filesystem::symlink_status(path, ignored));
    throw DataError(path.string() + (dangling ? ": the link points to a file that does not exist" : ": no such file"));
  }
  if (!std::filesystem::is_regular_file(path, ignored)) throw DataError(path.string() + ": not a regular file");
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw IoError({.errno_value = errno, .op = "open", .path = path.string(), .hint = ""});
  return FileHandle(fd, path);
}

FileHandle FileHandle::create(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) throw IoError({.errno_value = errno, .op = "create", .path = path.string(), .hint = ""});
  return FileHandle(fd, path);
}

FileHandle FileHandle::open_for_writing(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) throw IoError({.errno_value = errno, .op = "open", .path = path.string(), .hint = ""});
  return FileHandle(fd, path);
}

FileHandle::FileHandle(FileHandle&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      appended_bytes_(std::exchange(other.appended_bytes_, 0)) {}

FileHandle& FileHandle::operator=(FileHandle&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  std::swap(appended_bytes_, other.appended_bytes_);
  return *this;
}

FileHandle::~FileHandle() {
  // Data that must last goes through sync_and_close; here nothing is owed to the caller any more.
  if (fd_ >= 0) ::close(fd_);
}

std::uint64_t FileHandle::size() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) {
    throw IoError({.errno_value = errno, .op = "stat", .path = path_.string(), .hint = ""});
  }
  return static_cast<std::uint64_t>(status.st_size);
}

std::size_t FileHandle::read_some(std::uint64_t offset_bytes, std::span<std::byte> destination) const {
  std::size_t done = 0;
  while (done < destination.size()) {
    const std::size_t wanted = std::min(destination.size() - done, kMaxTransferBytes);
    const ssize_t got = ::pread(fd_, destination.data() + done, wanted, static_cast<off_t>(offset_bytes + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw IoError({.errno_value = errno,
                     .op = "read",
                     .path = path_.string(),
                     .offset_bytes = offset_bytes + done,
                     .bytes = wanted,
                     .hint = ""});
    }
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

void FileHandle::write(std::uint64_t offset_bytes, std::span<const std::byte> source) {
  std::size_t done = 0;
  while (done < source.size()) {
    const std::size_t wanted = std::min(source.size() - done, kMaxTransferBytes);
    const ssize_t put = ::pwrite(fd_, source.data() + done, wanted, static_cast<off_t>(offset_bytes + done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      const bool full = errno == ENOSPC || errno == EDQUOT;
      throw IoError({.errno_value = errno,
                     .op = "write",
                     .path = path_.string(),
                     .offset_bytes = offset_bytes + done,
                     .bytes = wanted,
                     .hint = full ? "free some space there or choose another folder" : ""});
    }
    done += static_cast<std::size_t>(put);
  }
}

void FileHandle::append(std::span<const std::byte> source) {
  write(appended_bytes_, source);
  appended_bytes_ += source.size();
}

void FileHandle::sync_and_close() {
  if (::fsync(fd_) != 0) throw IoError({.errno_value = errno, .op = "fsync", .path = path_.string(), .hint = ""});
  // close(2): the descriptor is gone even on error, so it is never closed twice.
  if (::close(std::exchange(fd_, -1)) != 0) {
    throw IoError({.errno_value = errno, .op = "close", .path = path_.string(), .hint = ""});
  }
}

std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const FileHandle file = FileHandle::open_for_reading(path);
  const std::uint64_t bytes = file.size();
  if (bytes > max_bytes) {
    throw DataError(path.string() + ": " + format_bytes(bytes) + ", expected at most " + format_bytes(max_bytes));
  }
  std::string text(bytes, '\0');
  text.resize(file.read_some(0, std::as_writable_bytes(std::span(text))));
  return text;
}

void sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw IoError({.errno_value = errno, .op = "open", .path = folder.string(), .hint = ""});
  const int failed = ::fsync(fd) != 0 ? errno : 0;
  ::close(fd);
  if (failed != 0) throw IoError({.errno_value = failed, .op = "fsync", .path = folder.string(), .hint = ""});
}

}  // namespace strata::hf
