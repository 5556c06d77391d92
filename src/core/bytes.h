// Byte quantities: literals, alignment, parsing and printing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace strata {

namespace literals {
constexpr std::uint64_t operator""_KiB(unsigned long long n) {
  return n << 10;
}
constexpr std::uint64_t operator""_MiB(unsigned long long n) {
  return n << 20;
}
constexpr std::uint64_t operator""_GiB(unsigned long long n) {
  return n << 30;
}
}  // namespace literals

// The alignment of every home and staging buffer: what O_DIRECT asks on drives with 4096-byte sectors.
inline constexpr std::size_t kPageBytes = 4096;

// Smallest multiple of `alignment` that is >= `value`. Requires: alignment > 0.
constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

constexpr std::uint64_t ceil_div(std::uint64_t value, std::uint64_t divisor) {
  return (value + divisor - 1) / divisor;
}

// "1.50 GiB", "640.00 MiB", "12 B".
std::string format_bytes(std::uint64_t bytes);

// Reads "20GiB", "1.5 GB", "64M", "5e8", "4096", "12 B": binary suffixes (KiB, MiB, GiB, TiB) are powers of 1024; K, M,
// G, T and KB, MB, GB, TB are powers of 1000. The result is exact. Throws ConfigError on anything else, on negative and
// on fractional bytes.
std::uint64_t parse_bytes(std::string_view text);

}  // namespace strata
