// Free bytes of the file system that holds an open file.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace strata::nvme {

// Bytes that this user may still write. Nothing when the file system does not say (ramfs reports no size at all).
std::optional<std::uint64_t> free_bytes(int fd);

// "directory /mnt/x: needs 4.00 MiB, 1.00 MiB free; ..." for a full disk.
std::string no_space_hint(int fd, const std::string& directory, std::uint64_t needed_bytes);

// The same for something that may lie on several: what is free on each and, every file system counted once, on all.
struct DirectoryOfFile {
  int fd = -1;
  std::string directory;
};
std::string no_space_hint(std::span<const DirectoryOfFile> directories, std::uint64_t needed_bytes);

}  // namespace strata::nvme
