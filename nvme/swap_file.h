// One swap file of a store: checked directory, anonymous file, space that grows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

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

// How a swap file comes to have no name.
enum class SwapFileBirth : std::uint8_t {
  Unnamed,  // O_TMPFILE: it never has one; Unlinked where the file system cannot do that
  Unlinked  // made under a name that is new and removed at once
};

// The file has no name from the moment it is open: it cannot be shared, and it is gone when the process is, however it
// ends.
class SwapFile {
 public:
  // Throws: as SwapDirectory; IoError when no file can be made there.
  SwapFile(const std::filesystem::path& directory, IoMode mode, SwapFileBirth birth = SwapFileBirth::Unnamed);

  int fd() const { return file_.get(); }
  IoMode mode() const { return mode_; }
  const std::filesystem::path& directory() const { return directory_.path(); }
  // Of offsets, lengths and addresses of requests; 1 when buffered.
  std::uint64_t request_alignment() const { return mode_ == IoMode::Direct ? alignment_ : 1; }
  // Of extents; at least kPageBytes.
  std::uint64_t extent_alignment() const { return alignment_; }

  // Both may block until the direct I/O that is in flight on this file has ended (ext4 does), and its completions need
  // the thread that runs them: never call them from there, nor with a lock that it takes. Thread-safe.
  //
  // Takes space for `bytes` bytes and returns where it starts: in a hole of just that size, or at the end of the file.
  // Requires: bytes is a multiple of extent_alignment(). Throws: IoError; on ENOSPC with needed and free bytes.
  std::uint64_t take(std::uint64_t bytes, const std::string& blob_name);
  // Gives the space of a range back to the file system. Its contents are lost and its place may be taken again. False
  // when the file system cannot do that; the space is still there then.
  // Requires: the range came from take() and nobody uses it.
  [[nodiscard]] bool give_back(std::uint64_t offset, std::uint64_t bytes);

 private:
  struct Hole {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };

  void use_direct_if_possible();
  int reserve_space(std::uint64_t begin, std::uint64_t bytes);
  int extend_sparse(std::uint64_t begin, std::uint64_t bytes);
  bool release_space(std::uint64_t begin, std::uint64_t bytes);

  SwapDirectory directory_;
  FileDescriptor file_;
  IoMode mode_;
  std::uint64_t alignment_;
  std::mutex mutex_;
  std::uint64_t end_ = 0;    // guarded by mutex_
  std::vector<Hole> holes_;  // guarded by mutex_; ranges before end_ that have no space
};

}  // namespace strata::nvme
