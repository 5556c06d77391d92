// ShardOptimizer on the GPU: every optimizer and encoding of OptimizerConfig over flat shards in device memory.
#pragma once

#include <memory>

#include "core/optimizer_config.h"
#include "core/shard_optimizer.h"

namespace strata::cuda {

// Queues on current_stream() of the calling thread, whose device is current; one launch for a view, however many
// segments it has (update_ranges.h names the exceptions). step() returns a complete event, because the stream orders.
// The bits are those of cpu_adam, but for the sign and payload of a NaN.
// Parameters and gradients are F32, BF16 or F16 in any combination. With 8-bit moments first_element is a multiple of
// kScaleBlock and moments of padding are zero.
// Owns no memory. Threads: any, each with its own views.
// step() throws: ContractViolation when types, sizes, segments or the context do not fit; DeviceError when CUDA refuses
// a launch. Errors of the work itself appear on the stream.
std::unique_ptr<ShardOptimizer> make_cuda_optimizer(const OptimizerConfig& config);

}  // namespace strata::cuda
