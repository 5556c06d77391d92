// The optimizer step on the device: entry points, one per encoding of the moments. C++17; plain C names.
#pragma once

#include <cstdint>

#include "core/optimizer_math.h"
#include "core/state_encodings.h"
#include "kernels/intervals.h"

namespace strata::kernels {

// How a parameter and its fp32 master are stored.
enum class Storage : std::uint8_t { F32, Bf16, F16, Bf16Remainder };

// A run of consecutive elements of one shard. Arrays lie in device memory and are aligned to their element type; where
// they are aligned alike to 16 bytes the run is faster.
struct UpdateRun {
  UpdateConstants constants;
  OptimizerKind kind = OptimizerKind::AdamW;
  Storage storage = Storage::F32;
  std::uint8_t grad_type = 0;  // kIndex of its encoding (core/encodings.h)
  void* param = nullptr;
  const void* grad = nullptr;
  void* master = nullptr;  // fp32, the remainder, or of fp32 parameters the parameter itself
  void* moments[2] = {};   // those that the kind has
  float* scales[2] = {};   // of 8-bit moments, one per 256 elements
  std::int64_t numel = 0;
  RandomKey key;                  // of bf16 moments: [Note: random words]
  std::uint32_t first_index = 0;  // low half of the first element's index; the run does not leave its 2^32
  Intervals intervals;            // may be empty where numel is 0
};

}  // namespace strata::kernels

extern "C" {

// Each queues the update of one run on `stream` (a cudaStream_t) of the current device, in one launch: unscale, decay,
// update and cast in one pass, with the bits of core/optimizer_math.h and core/state_encodings.h. Elements in padding
// keep their bytes. A run without elements queues nothing. `run` is copied.
// Return a cudaError_t: 0 when the work was queued. Errors of the work itself appear on the stream.

// Also for kinds without moments.
int strata_cuda_update_fp32(const strata::kernels::UpdateRun* run, void* stream);
// bf16 moments, rounded stochastically.
int strata_cuda_update_bf16(const strata::kernels::UpdateRun* run, void* stream);
// 8-bit moments. Requires: the run starts on the grid of blocks and ends there, or where the shard ends. Blocks without
// an updated element keep their bytes; the moments of padding in the others are zero.
int strata_cuda_update_block8(const strata::kernels::UpdateRun* run, void* stream);
}
