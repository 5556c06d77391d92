#include "models/gpu_attention.h"

#include <algorithm>

#include "core/bytes.h"

namespace strata::models {
namespace {

constexpr std::uint64_t kWide = 4;  // bytes of fp32

}  // namespace

// Thread blocks that share queries add to the gradient of q. To add in one order each of them has a copy of it, in fp32
// and of whole tiles, and there are as many as fill the GPU beside the pairs of a sequence and a head. Fewer sequences
// may need more memory than more of them: the copies are whole.
std::uint64_t flash_backward_bytes(const AttentionShape& shape, std::uint64_t multiprocessors) {
  const std::uint64_t tokens = align_up(shape.tokens, 128);
  const std::uint64_t head_dim = align_up(shape.head_dim, shape.head_dim <= 128 ? 32 : 64);
  std::uint64_t copies = 0;  // times sequences
  for (std::uint64_t sequences = 1; sequences <= shape.sequences; ++sequences) {
    copies = std::max(copies, sequences * ceil_div(multiprocessors, sequences * shape.heads));
  }
  const std::uint64_t grad_q = copies * tokens * shape.heads * head_dim * kWide;
  const std::uint64_t row_sums = shape.sequences * shape.heads * tokens * kWide;  // of gradient times result
  // Gradients of k and v for each query head, before they are summed over those that share a key head.
  const std::uint64_t expanded = shape.key_heads == shape.heads ? 0
                                                                : 2 * shape.sequences * shape.tokens * shape.heads *
                                                                      shape.head_dim * shape.element_bytes;
  return grad_q + row_sums + expanded;
}

// For each pair of a sequence and a head: the gradient of q in fp32, in tiles with a head of 16 bytes; where a 16-bit
// gradient of k and v is not kept in registers, a block of each in fp32.
std::uint64_t efficient_backward_bytes(const AttentionShape& shape) {
  constexpr std::uint64_t kLargestTile = 128;
  constexpr std::uint64_t kSmallestTile = 64;
  constexpr std::uint64_t kTileHead = 16;
  const std::uint64_t head_dim = align_up(shape.head_dim, kLargestTile);
  const std::uint64_t tiles = ceil_div(shape.tokens, kSmallestTile) * ceil_div(shape.head_dim, kSmallestTile);
  const std::uint64_t grad_q = align_up(shape.tokens, kLargestTile) * head_dim * kWide + tiles * kTileHead;
  const std::uint64_t grad_kv = shape.element_bytes < kWide ? 2 * kSmallestTile * head_dim * kWide : 0;
  const std::uint64_t pairs = shape.sequences * shape.heads;
  const std::uint64_t row_sums = 2 * pairs * shape.tokens * kWide;  // of gradient times result; once more transposed
  return pairs * (grad_q + grad_kv) + row_sums;
}

}  // namespace strata::models
