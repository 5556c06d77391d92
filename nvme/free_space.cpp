#include "nvme/free_space.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <set>

#include "core/bytes.h"

namespace strata::nvme {

std::optional<std::uint64_t> free_bytes(int fd) {
  struct statvfs info {};
  if (::fstatvfs(fd, &info) != 0 || info.f_blocks == 0) return std::nullopt;
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

namespace {

constexpr char kWhatToDo[] = "; free space there, lower the nvme budget, or name another directory in nvme.paths";

std::string in_words(const std::optional<std::uint64_t>& free) {
  return (free ? format_bytes(*free) : std::string("unknown")) + " free";
}

}  // namespace

std::string no_space_hint(int fd, const std::string& directory, std::uint64_t needed_bytes) {
  return "directory " + directory + ": needs " + format_bytes(needed_bytes) + ", " + in_words(free_bytes(fd)) +
         kWhatToDo;
}

std::string no_space_hint(std::span<const DirectoryOfFile> directories, std::uint64_t needed_bytes) {
  std::string hint = "needs " + format_bytes(needed_bytes) + "; ";
  std::uint64_t total = 0;
  std::set<dev_t> counted;
  for (const auto& [fd, directory] : directories) {
    const std::optional<std::uint64_t> free = free_bytes(fd);
    hint += in_words(free) + " in " + directory + ", ";
    struct stat info {};
    if (::fstat(fd, &info) == 0 && counted.insert(info.st_dev).second) total += free.value_or(0);
  }
  return hint + format_bytes(total) + " in total" + kWhatToDo;
}

}  // namespace strata::nvme
