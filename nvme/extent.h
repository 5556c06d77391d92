// Where one blob lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/budget.h"

namespace strata::nvme {

// A run of bytes in a swap file. `offset` and `padded_bytes` are multiples of `alignment`; the bytes between `bytes`
// and `padded_bytes` belong to nobody else.
struct Extent {
  std::string name;
  std::string directory;     // for messages
  int fd = -1;               // not owned
  std::uint64_t offset = 0;  // in the file
  std::uint64_t bytes = 0;   // as asked by the caller
  std::uint64_t padded_bytes = 0;
  std::uint64_t alignment = 1;  // of offsets, lengths and addresses; 1 when the file is buffered
  std::size_t volume = 0;       // which path of the store
  Reservation reservation;      // pays for padded_bytes
};

}  // namespace strata::nvme
