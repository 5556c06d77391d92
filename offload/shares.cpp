#include "offload/shares.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/bytes.h"
#include "core/error.h"

namespace strata::offload {

std::vector<std::uint64_t> host_numels(std::span<const ShardSpec> shards, double host_share,
                                       std::uint64_t grain_numel) {
  STRATA_EXPECTS(host_share >= 0 && host_share <= 1, "a share lies between 0 and 1");
  STRATA_EXPECTS(grain_numel > 0, "a grain has elements");
  std::vector<std::uint64_t> result;
  std::uint64_t total_bytes = 0;
  std::uint64_t host_bytes = 0;
  for (const ShardSpec& spec : shards) {
    const std::uint64_t element = bytes_of(spec.dtype);
    total_bytes += spec.numel * element;
    const auto wanted_bytes = static_cast<std::uint64_t>(std::llround(host_share * static_cast<double>(total_bytes)));
    const std::uint64_t missing = wanted_bytes > host_bytes ? (wanted_bytes - host_bytes) / element : 0;
    const std::uint64_t block = std::lcm<std::uint64_t>(kPageBytes / element, grain_numel);
    // The nearest place where a shard may be cut: the block before, or the next one, or the end.
    const std::uint64_t below = std::min(missing, spec.numel) / block * block;
    const std::uint64_t above = std::min(below + block, spec.numel);
    const std::uint64_t chosen = missing < below || missing - below <= (above - below) / 2 ? below : above;
    result.push_back(chosen);
    host_bytes += chosen * element;
  }
  return result;
}

}  // namespace strata::offload
