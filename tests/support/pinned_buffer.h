// Host memory that a GPU copies at full speed.
#pragma once

#include <memory>
#include <utility>

#include "core/buffer.h"
#include "core/bytes.h"
#include "cuda/backend.h"

namespace strata::test {

// `bytes` bytes, whose pages `pin(pages)` keeps pinned as long as the buffer lives. Nothing is pinned for none.
template <typename Pin>
Buffer pinned_buffer(Budget& budget, std::size_t bytes, Pin pin) {
  if (bytes == 0) return {};
  struct Pinned {
    Buffer memory;
    std::unique_ptr<cuda::PinnedRegion> region;  // goes first
  };
  auto owned = std::make_shared<Pinned>();
  owned->memory = allocate_host(budget, align_up(bytes, kPageBytes), MemoryTag::Staging);
  owned->region = pin(owned->memory.span());
  std::byte* const data = owned->memory.data();
  return Buffer(data, bytes, MemorySpace::Pinned, Reservation(),
                [owned = std::move(owned)](std::byte*, std::size_t) mutable { owned.reset(); });
}

}  // namespace strata::test
