// Shares: a class of tensors split by bytes between host memory and its home.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/shard.h"

namespace strata::offload {

// ShardSpec::host_numel of each shard of a class, so that `host_share` of the bytes of every prefix of `shards` lies in
// host memory, to within half a block: what rounding takes from one shard the next one gets. A block is 4096 bytes, or
// `grain_numel` elements where that is more (gradients whose norm is taken: ShardMath::kNormBlock).
// Each shard is split, not some kept whole, so that the drive's work is spread evenly over the update.
// Requires: 0 <= host_share <= 1, grain_numel > 0.
std::vector<std::uint64_t> host_numels(std::span<const ShardSpec> shards, double host_share,
                                       std::uint64_t grain_numel = 1);

}  // namespace strata::offload
