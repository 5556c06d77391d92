// What this machine has, read before anything is allocated.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace strata::engine {

// A line of /proc/meminfo, such as "MemTotal": bytes, or for lines that are no sizes the number itself.
std::optional<std::uint64_t> meminfo(const std::string& key);
// What the memory cgroup (v1 or v2) allows; nothing where it sets no limit. v1 says "no limit" with a size beyond that
// of any machine.
std::optional<std::uint64_t> ram_limit_bytes();
// Bytes of RAM that this process may still take: MemAvailable, or what the memory cgroup (v1 or v2) leaves, whichever
// is less.
std::uint64_t available_ram_bytes();
// Resident set size of this process.
std::uint64_t resident_bytes();
// Free bytes for this user on the file system that holds `path` (or its nearest existing parent). Throws: IoError.
std::uint64_t free_disk_bytes(const std::filesystem::path& path);
// What a run may take of them: a file system that is full to the last block is slow and breaks others.
constexpr std::uint64_t usable_of_free(std::uint64_t bytes) {
  return bytes / 20 * 19;
}

}  // namespace strata::engine
