#include "comm/sum_rows.h"

#include <algorithm>

#include "core/error.h"

namespace strata::comm {

void sum_rows(ShardMath& math, TensorSpan full, std::size_t world, std::size_t into, TensorSpan scratch) {
  STRATA_EXPECTS(world > 0 && full.numel % world == 0 && into < world, "rows of equal size, one of which gets the sum");
  STRATA_EXPECTS(scratch.dtype == DType::F32 && scratch.numel >= kSumChunk, "scratch for one chunk in fp32");
  const std::size_t row = full.numel / world;
  for (std::size_t first = 0; first < row; first += kSumChunk) {
    const std::size_t count = std::min(kSumChunk, row - first);
    const TensorSpan sum = scratch.subspan(0, count);
    for (std::size_t r = 0; r < world; ++r) {
      const TensorSpan part = full.subspan(r * row + first, count);
      r == 0 ? math.cast(sum, part) : math.accumulate(sum, part);
    }
    math.cast(full.subspan(into * row + first, count), sum);
  }
}

}  // namespace strata::comm
