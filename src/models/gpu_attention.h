// What torch's attention allocates in a backward on a GPU, beside its inputs, its result and their gradients.
#pragma once

#include <cstdint>

namespace strata::models {

struct AttentionShape {
  std::uint64_t sequences = 0;
  std::uint64_t tokens = 0;     // of each
  std::uint64_t heads = 0;      // of queries
  std::uint64_t key_heads = 0;  // of keys and values, as the kernel gets them
  std::uint64_t head_dim = 0;   // a multiple of 8: else torch pads, or keeps all scores
  std::uint64_t element_bytes = 0;
};

// The flash kernel (16-bit types, no mask), when it must not depend on the order of its sums: at most, over as many
// sequences and fewer.
std::uint64_t flash_backward_bytes(const AttentionShape& shape, std::uint64_t multiprocessors);
// The memory-efficient kernel, whose keys are not split: at most, over its tiles for compute capabilities from 8.0 on.
std::uint64_t efficient_backward_bytes(const AttentionShape& shape);

}  // namespace strata::models
