// Sums of squares in their fixed order, as one thread of a grid performs them. The order leaves 16 chains of additions
// per block of 65,536 elements, which no thread may share: a thread takes as many neighbouring chains as a 128-bit
// access holds elements. C++17, for device and host.
#pragma once

#include <cstdint>

#include "core/encodings.h"
#include "kernels/group.h"
#include "kernels/shard_math.h"

namespace strata::kernels {

// sum + value^2. The square of an fp32 value is exact in double, so fusing changes no bit and saves an operation of a
// unit that is scarce on many devices.
STRATA_HOST_DEVICE inline double add_square(double sum, double value) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(value, value, sum);
#else
  return sum + value * value;
#endif
}

template <typename Encoding>
struct SumLanesBody {
  using Stored = typename Encoding::Stored;
  static constexpr int kGroup = group_size(sizeof(Stored));
  static constexpr int kParts = kSumLanes / kGroup;  // threads of a block
  // Rows of 16 elements whose loads are on their way at once. Threads are few, so registers are plenty.
  static constexpr int kAhead = 8;
  static constexpr int kResidentBlocks = 1;

  const Stored* values;
  double* lanes;
  std::int64_t numel;
  bool aligned;

  SumLanesBody(const void* of, double* to, std::int64_t count)
      : values(static_cast<const Stored*>(of)),
        lanes(to),
        numel(count),
        aligned(aligned_from<kGroup>({{of, sizeof(Stored)}}, 0)) {}

  std::int64_t items() const { return (numel + kNormBlock - 1) / kNormBlock * kParts; }

  STRATA_HOST_DEVICE void operator()(std::int64_t thread, std::int64_t threads) const {
    const std::int64_t blocks = (numel + kNormBlock - 1) / kNormBlock;
    for (std::int64_t item = thread; item < blocks * kParts; item += threads) sum(item);
  }

 private:
  STRATA_HOST_DEVICE void sum(std::int64_t item) const {
    const std::int64_t begin = item / kParts * kNormBlock + item % kParts * kGroup;
    const std::int64_t end = numel - begin < kNormBlock ? numel : item / kParts * kNormBlock + kNormBlock;
    const GroupShape<kGroup> shape = {end, 0, 0, aligned};
    double sums[kGroup] = {};
    std::int64_t first = begin;
    for (; aligned && first + (kAhead - 1) * kSumLanes + kGroup <= end; first += kAhead * kSumLanes) {
      Group<Stored, kGroup> rows[kAhead];
      STRATA_UNROLL
      for (int a = 0; a < kAhead; ++a) rows[a].load(values + first + a * kSumLanes, shape.kAll, true);
      STRATA_UNROLL
      for (int a = 0; a < kAhead; ++a) add(rows[a], shape.kAll, sums);
    }
    for (; first < end; first += kSumLanes) {
      const unsigned members = shape.members_from(first);
      Group<Stored, kGroup> row;
      row.load(values + first, members, aligned && members == shape.kAll);
      add(row, members, sums);
    }
    STRATA_UNROLL
    for (int k = 0; k < kGroup; ++k) lanes[item * kGroup + k] = sums[k];
  }

  STRATA_HOST_DEVICE static void add(const Group<Stored, kGroup>& row, unsigned members, double (&sums)[kGroup]) {
    STRATA_UNROLL
    for (int k = 0; k < kGroup; ++k) {
      if (members >> k & 1u) sums[k] = add_square(sums[k], static_cast<double>(Encoding::decode(row.values[k])));
    }
  }
};

}  // namespace strata::kernels
