#include "nvme/free_space.h"

#include <sys/statvfs.h>

#include "core/bytes.h"

namespace strata::nvme {

std::optional<std::uint64_t> free_bytes(int fd) {
  struct statvfs info {};
  if (::fstatvfs(fd, &info) != 0 || info.f_blocks == 0) return std::nullopt;
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

std::string no_space_hint(int fd, const std::string& directory, std::uint64_t needed_bytes) {
  const std::optional<std::uint64_t> free = free_bytes(fd);
  return "directory " + directory + ": needs " + format_bytes(needed_bytes) + ", " +
         (free ? format_bytes(*free) : std::string("unknown")) +
         " free; free space there, lower the nvme budget, or name another directory in nvme.paths";
}

}  // namespace strata::nvme
