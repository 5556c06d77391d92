#include "engine/machine.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include <sys/statvfs.h>

#include "core/error.h"

namespace strata::engine {
namespace {

std::optional<std::uint64_t> number_in(const char* file) {
  std::ifstream in(file);
  std::uint64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;  // absent, or "max"
}

std::uint64_t left_in_cgroup(const char* limit_file, const char* usage_file) {
  const std::optional<std::uint64_t> limit = number_in(limit_file);
  const std::optional<std::uint64_t> usage = number_in(usage_file);
  if (!limit || !usage) return std::numeric_limits<std::uint64_t>::max();
  return *limit > *usage ? *limit - *usage : 0;
}

}  // namespace

std::optional<std::uint64_t> meminfo(const std::string& key) {
  std::ifstream in("/proc/meminfo");
  std::string name;
  std::uint64_t value = 0;
  std::string unit;
  while (in >> name >> value) {
    std::getline(in, unit);
    if (name == key + ":") return unit == " kB" ? value * 1024 : value;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> ram_limit_bytes() {
  const std::optional<std::uint64_t> limit = number_in("/sys/fs/cgroup/memory.max");
  return limit ? limit : number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes");
}

std::uint64_t available_ram_bytes() {
  std::uint64_t available = meminfo("MemAvailable").value_or(0);
  available = std::min(available, left_in_cgroup("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"));
  available = std::min(available, left_in_cgroup("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                                                 "/sys/fs/cgroup/memory/memory.usage_in_bytes"));
  return available;
}

std::uint64_t resident_bytes() {
  // /proc/self/status has lines that are no numbers, so it is searched as text.
  std::ifstream in("/proc/self/status");
  std::string line;
  while (std::getline(in, line)) {
    if (line.rfind("VmRSS:", 0) == 0) return std::stoull(line.substr(6)) * 1024;
  }
  return 0;
}

std::uint64_t free_disk_bytes(const std::filesystem::path& path) {
  std::filesystem::path existing = std::filesystem::absolute(path);
  while (!std::filesystem::exists(existing) && existing.has_parent_path() && existing != existing.root_path()) {
    existing = existing.parent_path();
  }
  struct statvfs info {};
  if (statvfs(existing.c_str(), &info) != 0) {
    throw IoError({errno, "statvfs", existing.string(), 0, 0, "the folder for the run must be readable"});
  }
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace strata::engine
