// What this machine has, read before anything is allocated.
#pragma once

#include <cstdint>
#include <filesystem>

namespace strata::engine {

// Bytes of RAM that this process may still take: MemAvailable, or what the memory cgroup (v1 or v2) leaves, whichever
// is less.
std::uint64_t available_ram_bytes();
// Resident set size of this process.
std::uint64_t resident_bytes();
// Free bytes for this user on the file system that holds `path` (or its nearest existing parent). Throws: IoError.
std::uint64_t free_disk_bytes(const std::filesystem::path& path);

}  // namespace strata::engine
