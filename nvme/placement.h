// Space for the chunks of a new blob.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "nvme/striping.h"
#include "nvme/swap_file.h"

namespace strata::nvme {

// Where a chunk begins: in the swap file of which path, at which offset.
struct Place {
  std::size_t path = 0;
  std::uint64_t offset = 0;
};

// Takes space for chunks of `sizes` bytes (padding included), dealt as `striping` says and as far as each path has
// room; the chunks of one path follow each other in its file. All or nothing.
// Requires: no size but the last differs. Throws: IoError; on a full disk ENOSPC with need and have, per path and in
// total.
std::vector<Place> take_places(std::span<SwapFile* const> files, const Striping& striping,
                               std::span<const std::uint64_t> sizes, const std::string& blob_name);

}  // namespace strata::nvme
