// What is asked of an I/O backend, and what it answers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/bytes.h"

namespace strata::nvme {

enum class IoOp : std::uint8_t { Read, Write };

// The kernel cuts one read or write at 2 GiB - 4 KiB, and one registered buffer holds 1 GiB; stay below both.
inline constexpr std::size_t kMaxRequestBytes = std::size_t{1} << 30;

// One read or write of a contiguous range. `data` must stay valid until the request's completion was returned.
struct IoRequest {
  IoOp op = IoOp::Read;
  int fd = -1;
  std::uint64_t offset = 0;
  std::byte* data = nullptr;  // only read when op is Write
  std::size_t bytes = 0;      // 1 .. kMaxRequestBytes
  std::uint64_t token = 0;    // comes back in the completion; any value but kReservedToken
};

inline constexpr std::uint64_t kReservedToken = ~std::uint64_t{0};

// `result` is what the system call gave: bytes moved (possibly fewer than asked), or -errno.
struct IoCompletion {
  std::uint64_t token = 0;
  std::int64_t result = 0;
};

}  // namespace strata::nvme
