// Shard arithmetic on the device: entry points. C++17; plain C names.
//
// Arrays lie in device memory and are aligned to their element type; where they are aligned alike to 16 bytes the work
// is faster. Types are kIndex of their encodings (core/encodings.h), codes are values of BlockCode. Each queues its
// work on `stream` (a cudaStream_t) of the current device in one launch, or nothing where numel is 0, and returns a
// cudaError_t: 0 when the work was queued. Errors of the work itself appear on the stream. The bits are those of
// cpu_adam, but for the sign and payload of a NaN.
#pragma once

#include <cstdint>

namespace strata::kernels {

// Sums of squares have a fixed order: element i of a block of kNormBlock elements is squared in double, exactly, and
// added to lane i mod kSumLanes; the lanes are folded by halves.
inline constexpr std::int64_t kNormBlock = 65536;
inline constexpr int kSumLanes = 16;

inline double fold_lanes(const double* lanes) {
  double sums[kSumLanes];
  for (int k = 0; k < kSumLanes; ++k) sums[k] = lanes[k];
  for (int width = kSumLanes / 2; width > 0; width /= 2) {
    for (int k = 0; k < width; ++k) sums[k] += sums[k + width];
  }
  return sums[0];
}

}  // namespace strata::kernels

extern "C" {

// destination = source, converted. The arrays do not overlap.
int strata_cuda_cast(void* destination, int destination_type, const void* source, int source_type, std::int64_t numel,
                     void* stream);
// destination += source, added in fp32 and rounded once.
int strata_cuda_accumulate(void* destination, int destination_type, const void* source, int source_type,
                           std::int64_t numel, void* stream);
// `values` is [rows, row]; row `into` becomes the sum of all, added in row order in fp32 and rounded once.
int strata_cuda_sum_rows(void* values, int type, std::int64_t row, std::int64_t rows, std::int64_t into, void* stream);
// The kSumLanes lanes of each block of kNormBlock elements, the last of which may be short, into `lanes`, which the
// device writes: device memory or pinned host memory. The caller folds them.
int strata_cuda_sum_lanes(double* lanes, const void* values, int type, std::int64_t numel, void* stream);

// [Note: block codes]. A message lies at a multiple of 4 bytes. The arrays do not overlap.
int strata_cuda_quantize(void* message, const void* values, int type, std::int64_t numel, int code, void* stream);
int strata_cuda_dequantize(void* values, int type, const void* message, std::int64_t numel, int code, void* stream);
int strata_cuda_dequantize_add(float* sum, const void* message, std::int64_t numel, int code, void* stream);
}
