// Bytes for I/O tests: seeded contents, and memory at a chosen distance from a page boundary with guards around it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

namespace strata::test {

inline std::vector<std::byte> random_bytes(std::size_t bytes, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<std::byte> result(bytes);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = engine();
    std::memcpy(result.data() + i, &word, std::min<std::size_t>(8, bytes - i));
  }
  return result;
}

// `bytes` bytes that start `shift` bytes behind a 4096-byte boundary, between two guards.
class GuardedBytes {
 public:
  GuardedBytes(std::size_t bytes, std::size_t shift) : bytes_(bytes), memory_(bytes + kPage + 2 * kGuard, kMark) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data()) + kGuard;
    begin_ = kGuard + (kPage - address % kPage) % kPage + shift % kGuard;
  }
  std::span<std::byte> span() { return {memory_.data() + begin_, bytes_}; }
  bool guards_intact() const {
    const auto is_mark = [](std::byte b) { return b == kMark; };
    const auto begin = memory_.begin() + static_cast<std::ptrdiff_t>(begin_);
    return std::all_of(memory_.begin(), begin, is_mark) &&
           std::all_of(begin + static_cast<std::ptrdiff_t>(bytes_), memory_.end(), is_mark);
  }

 private:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kGuard = 8192;  // more than one block on either side
  static constexpr std::byte kMark{0xA5};
  std::size_t bytes_;
  std::vector<std::byte> memory_;
  std::size_t begin_ = 0;
};

}  // namespace strata::test
