// The checksum of a chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace strata::nvme {

// XXH3, 64 bits, with the widest vectors that this processor has. Thread-safe.
std::uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace strata::nvme
