// ShardMath on the GPU.
#pragma once

#include <memory>

#include "core/shard_optimizer.h"

namespace strata::cuda {

class DeviceContext;

// Queues on current_stream() of the calling thread, whose device is current, in device memory; spans are aligned to
// their element type. block_sums_of_squares() waits for the stream: the sums are in host memory when it returns. The
// bits are those of cpu_adam, but for the sign and payload of a NaN.
// Owns 1 MiB of pinned memory, and must not outlive `context`. Threads: any, each with its own spans.
// Calls throw: ContractViolation for types and sizes that do not fit; DeviceError when CUDA refuses a launch or, in
// block_sums_of_squares(), when earlier work of the stream failed. The function itself throws DeviceError without
// pinned memory.
std::unique_ptr<ShardMath> make_cuda_shard_math(DeviceContext& context);

}  // namespace strata::cuda
