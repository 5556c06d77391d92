// What the kernel says of this process and this machine's memory (proc(5)).
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace strata::test {

// Bytes of a line of /proc/self/status such as "VmRSS"; 0 when it is missing.
inline std::uint64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::stoull(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

// The line of /proc/self/numa_maps for the mapping that holds `address`; empty where the kernel has none.
inline std::string numa_policy_of(const void* address) {
  std::ifstream maps("/proc/self/numa_maps");
  std::string found;
  for (std::string line; std::getline(maps, line);) {  // in the order of addresses, each line with its first
    if (std::stoull(line, nullptr, 16) > reinterpret_cast<std::uintptr_t>(address)) break;
    found = line;
  }
  return found;
}

// The line VmFlags of /proc/self/smaps for the mapping that holds `address`; empty where the kernel has none.
inline std::string flags_of_mapping(const void* address) {
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    const std::size_t dash = line.find('-');
    if (dash != std::string::npos && dash < line.find(' ')) {  // "first-last rw-p ..."
      const auto wanted = reinterpret_cast<std::uintptr_t>(address);
      inside = std::stoull(line, nullptr, 16) <= wanted && wanted < std::stoull(line.substr(dash + 1), nullptr, 16);
    }
    if (inside && line.starts_with("VmFlags:")) return line;
  }
  return "";
}

}  // namespace strata::test
