#include "nvme/swap_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <optional>
#include <system_error>

#include "core/bytes.h"
#include "core/error.h"
#include "core/log.h"
#include "nvme/free_space.h"

namespace strata::nvme {
namespace fs = std::filesystem;
namespace {

constexpr int kNameAttempts = 1000;

FileDescriptor create_unlinked(const fs::path& directory) {
  const std::string stem = "strata-swap-" + std::to_string(::getpid()) + "-";
  int error = EEXIST;
  for (int attempt = 0; attempt < kNameAttempts && error == EEXIST; ++attempt) {
    const fs::path path = directory / (stem + std::to_string(attempt));
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0) {
      FileDescriptor file(fd);
      // At once, so that not even kill -9 leaves it behind.
      if (::unlink(path.c_str()) != 0) throw IoError({errno, "unlink", path.string(), 0, 0, ""});
      return file;
    }
    error = errno;
  }
  throw IoError({error, "create a swap file in", directory.string(), 0, 0,
                 "nvme.paths must name directories that this user may write in"});
}

FileDescriptor create(const fs::path& directory, SwapFileBirth birth) {
  if (birth == SwapFileBirth::Unnamed) {
    // O_EXCL: nobody, /proc included, can give it a name later.
    const int fd = ::open(directory.c_str(), O_RDWR | O_TMPFILE | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) return FileDescriptor(fd);
    // Not every file system can (NFS, FAT). What else is wrong with the directory shows again below.
  }
  return create_unlinked(directory);
}

// What direct I/O on this file asks for; 0 when the kernel knows that it cannot do it; nothing when it does not say.
std::optional<std::uint64_t> direct_alignment(int fd) {
#ifdef STATX_DIOALIGN
  struct statx info {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) != 0) return std::nullopt;
  if ((info.stx_mask & STATX_DIOALIGN) == 0) return std::nullopt;
  if (info.stx_dio_mem_align == 0 || info.stx_dio_offset_align == 0) return 0;
  return std::max(info.stx_dio_mem_align, info.stx_dio_offset_align);
#else
  (void)fd;
  return std::nullopt;
#endif
}

}  // namespace

SwapDirectory::SwapDirectory(fs::path path) : path_(std::move(path)) {
  std::error_code ignored;  // status() reports what it cannot see as file_type::none or not_found
  const fs::file_status status = fs::status(path_, ignored);
  if (fs::is_directory(status)) return;
  if (fs::exists(status)) throw ConfigError("nvme.paths: " + path_.string() + " is not a directory");
  if (fs::is_symlink(fs::symlink_status(path_, ignored))) {
    throw ConfigError("nvme.paths: " + path_.string() + " is a link to " + fs::read_symlink(path_, ignored).string() +
                      ", which cannot be reached; create the target or name another directory");
  }
  if (::mkdir(path_.c_str(), 0700) == 0) {
    created_ = true;
  } else if (errno == ENOENT || errno == ENOTDIR) {
    throw ConfigError("nvme.paths: cannot create " + path_.string() + ": its parent is not a directory; create " +
                      path_.parent_path().string() + " or name another directory");
  } else if (errno != EEXIST) {  // EEXIST: another process was quicker, which is as good
    throw IoError(
        {errno, "mkdir", path_.string(), 0, 0, "nvme.paths must name directories that this user may write in"});
  }
}

SwapDirectory::~SwapDirectory() {
  // Fails, rightly, when something else lies in it by now.
  if (created_) (void)::rmdir(path_.c_str());
}

SwapFile::SwapFile(const fs::path& directory, IoMode mode, SwapFileBirth birth)
    : directory_(directory), file_(create(directory, birth)), mode_(IoMode::Buffered), alignment_(kPageBytes) {
  if (mode == IoMode::Direct) use_direct_if_possible();
}

void SwapFile::use_direct_if_possible() {
  const std::optional<std::uint64_t> asked = direct_alignment(fd());
  // Set after open(): open(O_CREAT | O_DIRECT) leaves a file behind where it fails.
  const int flags = ::fcntl(fd(), F_GETFL);
  if (flags < 0) throw IoError({errno, "fcntl", directory().string(), 0, 0, ""});
  if (asked == std::uint64_t{0} || ::fcntl(fd(), F_SETFL, flags | O_DIRECT) != 0) {
    log::warning_once("nvme.direct." + directory().string(),
                      "the file system of " + directory().string() +
                          " cannot do direct I/O (O_DIRECT): using buffered I/O, whose page cache competes for RAM");
    return;
  }
  mode_ = IoMode::Direct;
  alignment_ = std::max<std::uint64_t>(kPageBytes, asked.value_or(kPageBytes));
}

std::uint64_t SwapFile::take(std::uint64_t bytes, const std::string& blob_name) {
  STRATA_EXPECTS(bytes % alignment_ == 0, "extents are whole blocks of " + std::to_string(alignment_) + " bytes");
  const std::lock_guard lock(mutex_);
  const auto hole = std::find_if(holes_.begin(), holes_.end(), [&](const Hole& each) { return each.bytes == bytes; });
  const std::uint64_t begin = hole == holes_.end() ? end_ : hole->offset;
  const int error = reserve_space(begin, bytes);
  if (error != 0) {
    // Gives back what a half-done reservation took, so that the free bytes below are what the user sees.
    (void)release_space(begin, bytes);
    const std::string where = directory().string();
    const bool full = error == ENOSPC || error == EDQUOT;
    throw IoError({error, "reserve", where + " (blob " + blob_name + ")", begin, bytes,
                   full ? no_space_hint(fd(), where, bytes) : std::string()});
  }
  if (hole != holes_.end()) {
    holes_.erase(hole);
  } else {
    end_ = begin + bytes;
  }
  return begin;
}

bool SwapFile::give_back(std::uint64_t offset, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (!release_space(offset, bytes)) return false;
  if (offset + bytes == end_) {
    end_ = offset;
  } else {
    holes_.push_back({offset, bytes});
  }
  return true;
}

bool SwapFile::release_space(std::uint64_t begin, std::uint64_t bytes) {
  int result = 0;
  do {
    result = begin + bytes >= end_ ? ::ftruncate(fd(), static_cast<off_t>(begin))
                                   : ::fallocate(fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                                 static_cast<off_t>(begin), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

// 0 or errno.
int SwapFile::reserve_space(std::uint64_t begin, std::uint64_t bytes) {
  if (bytes == 0) return 0;
  int error = 0;
  do {
    error = ::fallocate(fd(), 0, static_cast<off_t>(begin), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (error == EINTR);
  return error == EOPNOTSUPP || error == EINVAL || error == ENOSYS ? extend_sparse(begin, bytes) : error;
}

// For file systems without fallocate: the space is promised by the file's length only, so compare the promise with what
// is free. Others may still take it; a write then fails with ENOSPC and says so.
int SwapFile::extend_sparse(std::uint64_t begin, std::uint64_t bytes) {
  struct stat info {};
  if (::fstat(fd(), &info) != 0) return errno;
  const std::uint64_t allocated = static_cast<std::uint64_t>(info.st_blocks) * 512;
  const std::uint64_t end = std::max(end_, begin + bytes);
  const std::optional<std::uint64_t> free = free_bytes(fd());
  if (free && end > allocated && end - allocated > *free) return ENOSPC;
  return ::ftruncate(fd(), static_cast<off_t>(end)) == 0 ? 0 : errno;
}

}  // namespace strata::nvme
