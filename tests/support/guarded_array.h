// Elements at a chosen misalignment with guard bytes on both sides: a write outside them is seen.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "core/buffer.h"

namespace strata::test {

class GuardedArray {
 public:
  static constexpr std::size_t kGuardBytes = 64;

  // `shift` elements behind a 64-byte boundary (plus the guard).
  GuardedArray(DType dtype, std::size_t numel, std::size_t shift)
      : dtype_(dtype),
        numel_(numel),
        bytes_(numel * bytes_of(dtype) + (shift * bytes_of(dtype)) + 3 * kGuardBytes, kGuard) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
    first_ = (kGuardBytes - address % kGuardBytes) % kGuardBytes + kGuardBytes + shift * bytes_of(dtype);
  }
  // The place depends on the allocation's address, so a copy would move it; moving keeps the allocation.
  GuardedArray(GuardedArray&&) = default;
  GuardedArray& operator=(GuardedArray&&) = default;

  TensorSpan span() const { return {const_cast<std::byte*>(bytes_.data()) + first_, dtype_, numel_}; }

  bool guards_intact() const {
    const auto is_guard = [](std::byte byte) { return byte == kGuard; };
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(first_);
    const auto end = begin + static_cast<std::ptrdiff_t>(span().bytes());
    return std::all_of(bytes_.begin(), begin, is_guard) && std::all_of(end, bytes_.end(), is_guard);
  }

  bool same_elements(const GuardedArray& other) const {
    return numel_ == other.numel_ && (numel_ == 0 || std::memcmp(span().data, other.span().data, span().bytes()) == 0);
  }

 private:
  static constexpr std::byte kGuard{0xA5};

  DType dtype_;
  std::size_t numel_;
  std::vector<std::byte> bytes_;
  std::size_t first_ = 0;
};

}  // namespace strata::test
