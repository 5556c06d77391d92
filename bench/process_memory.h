// Peak resident memory of this process, from proc(5).
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace strata::bench {

// Bytes; 0 where the kernel does not say.
inline std::uint64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
  }
  return 0;
}

// The peak begins anew with what is resident now. Where the kernel refuses, it stays.
inline void forget_peak_resident_bytes() {
  std::ofstream("/proc/self/clear_refs") << 5 << std::flush;
}

}  // namespace strata::bench
