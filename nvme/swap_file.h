// One swap file of a store: checked directory, anonymous file, space that grows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>

#include "nvme/file_descriptor.h"

namespace strata::nvme {

// Direct bypasses the page cache and asks for aligned requests. A file system that cannot do it is used buffered.
enum class IoMode : std::uint8_t { Direct, Buffered };

// Makes sure of a directory to write in; removes it at the end if this object made it and if it is empty then.
class SwapDirectory {
 public:
  // Creates `path` when only its last component is missing.
  // Throws: ConfigError when it is not, or cannot become, a directory; IoError when mkdir fails.
  explicit SwapDirectory(std::filesystem::path path);
  ~SwapDirectory();
  SwapDirectory(const SwapDirectory&) = delete;
  SwapDirectory& operator=(const SwapDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  bool created_ = false;
};

// The file has no name from the moment it is open: it cannot be shared, and it is gone when the process is, however it
// ends.
class SwapFile {
 public:
  // Throws: as SwapDirectory; IoError when no file can be made there.
  SwapFile(const std::filesystem::path& directory, IoMode mode);

  int fd() const { return file_.get(); }
  IoMode mode() const { return mode_; }
  const std::filesystem::path& directory() const { return directory_.path(); }
  // Of offsets, lengths and addresses of requests; 1 when buffered.
  std::uint64_t request_alignment() const { return mode_ == IoMode::Direct ? alignment_ : 1; }
  // Of extents; at least kPageBytes.
  std::uint64_t extent_alignment() const { return alignment_; }

  // Adds space for `bytes` bytes at the end and returns where it starts. Thread-safe.
  // Requires: bytes is a multiple of extent_alignment(). Throws: IoError; on ENOSPC with needed and free bytes.
  std::uint64_t grow(std::uint64_t bytes, const std::string& blob_name);

 private:
  void use_direct_if_possible();
  int reserve_space(std::uint64_t begin, std::uint64_t bytes);
  int extend_sparse(std::uint64_t begin, std::uint64_t bytes);

  SwapDirectory directory_;
  FileDescriptor file_;
  IoMode mode_;
  std::uint64_t alignment_;
  std::mutex mutex_;
  std::uint64_t end_ = 0;  // guarded by mutex_
};

}  // namespace strata::nvme
