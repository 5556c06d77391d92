// Anonymous page mappings, for the classes of core that make Buffers.
#pragma once

#include <cstddef>
#include <limits>

#include "core/bytes.h"

namespace strata {

// The bytes that a mapping for `bytes` bytes takes. Saturates, so that a budget refuses an absurd size instead of
// granting what it wraps around to.
constexpr std::size_t whole_pages(std::size_t bytes) {
  constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
  return bytes > kMax - kPageBytes ? kMax : align_up(bytes, kPageBytes);
}

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// Maps exactly `bytes` zeroed private bytes. From kHugePageBytes on, the mapping begins at a multiple of it and is
// spread over the NUMA nodes; its whole huge pages are taken from the machine's reserve (vm.nr_hugepages) when that has
// all of them, else they are advised to be transparent; the rest lies on small pages. Small and transparent pages cost
// memory from their first touch on; reserved ones are taken, and zeroed, at once. Requires: bytes > 0, whole pages.
// Throws: IoError when the kernel refuses.
std::byte* map_pages(std::size_t bytes);

// Ends a mapping of map_pages(bytes). A failure is logged, as it can only leak.
void unmap_pages(std::byte* data, std::size_t bytes) noexcept;

}  // namespace strata
