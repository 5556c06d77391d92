#include "nvme/checksum.h"

#include <xxhash.h>

#include <array>

// Of the library, where it was built for x86: the plain functions use what the distribution's baseline has (SSE2),
// which is a quarter of the speed of AVX-512.
#if __has_include(<xxh_x86dispatch.h>)
#define XXH_DISPATCH_DISABLE_REPLACE
#include <xxh_x86dispatch.h>
#endif

namespace strata::nvme {
namespace {

std::uint64_t xxh3(const std::byte* data, std::size_t bytes) {
#if __has_include(<xxh_x86dispatch.h>)
  return XXH3_64bits_dispatch(data, bytes);
#else
  return XXH3_64bits(data, bytes);
#endif
}

}  // namespace

std::uint64_t checksum(std::span<const std::byte> bytes) {
  // The library looks at the processor at the first long input and remembers it without a lock: one thread does that.
  static const std::uint64_t chosen = xxh3(std::array<std::byte, 512>{}.data(), 512);
  static_cast<void>(chosen);
  return xxh3(bytes.data(), bytes.size());
}

}  // namespace strata::nvme
