// Where one chunk of a blob lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace strata::nvme {

// A run of bytes in a swap file. `offset` and `padded_bytes` are multiples of `alignment`; the bytes between `bytes`
// and `padded_bytes` belong to nobody else. It changes only while no transfer on it is in flight.
struct Extent {
  std::string name;          // of the blob and, when it has several chunks, of this one; for messages
  std::string directory;     // for messages
  int fd = -1;               // not owned
  std::uint64_t offset = 0;  // in the file
  std::uint64_t bytes = 0;   // as asked by the caller
  std::uint64_t padded_bytes = 0;
  std::uint64_t alignment = 1;  // of offsets, lengths and addresses; 1 when the file is buffered
  std::size_t volume = 0;       // which path of the store
};

}  // namespace strata::nvme
