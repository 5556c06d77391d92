// The fused AdamW step as one thread of a grid performs it. C++17; compiled for the device by adamw.cu and for the host
// by the tests, which run every thread in turn and compare with the scalar definition.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/encodings.h"
#include "core/optimizer_math.h"

namespace strata::kernels {

// Consecutive elements of one shard that are treated alike. Pointers are aligned to their element type and no further.
struct AdamwRun {
  void* param = nullptr;  // 16-bit: written. fp32 parameters are `master` and this is not used
  const void* grad = nullptr;
  float* master = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  std::int64_t numel = 0;
  float decay_factor = 1;
};

// [Note: groups] A group is 8 elements: one 128-bit access of a 16-bit array, two of an fp32 array. The elements before
// the first aligned group and those behind the last whole one are handled singly.
constexpr int kGroup = 8;
constexpr std::int64_t kAccessBytes = 16;

struct RunShape {
  std::int64_t head = 0;  // elements before the first group
  std::int64_t groups = 0;
};

// Where 128-bit accesses are possible in `run`: nowhere (no groups) when its arrays are not aligned alike.
template <typename Param, typename Grad>
RunShape shape_of(const AdamwRun& run) {
  const auto aligned = [](const void* array, std::size_t element_bytes, std::int64_t first) {
    return (reinterpret_cast<std::uintptr_t>(array) + element_bytes * static_cast<std::size_t>(first)) % kAccessBytes ==
           0;
  };
  for (std::int64_t head = 0; head < kGroup && head + kGroup <= run.numel; ++head) {
    if (aligned(run.param, sizeof(typename Param::Stored), head) &&
        aligned(run.grad, sizeof(typename Grad::Stored), head) && aligned(run.master, sizeof(float), head) &&
        aligned(run.exp_avg, sizeof(float), head) && aligned(run.exp_avg_sq, sizeof(float), head)) {
      return {head, (run.numel - head) / kGroup};
    }
  }
  return {};
}

// Copies `bytes`, a multiple of 16, between registers and 16-byte-aligned memory, in either direction.
template <int kBytes>
STRATA_HOST_DEVICE inline void copy_aligned(void* to, const void* from) {
  static_assert(kBytes % kAccessBytes == 0, "whole 128-bit accesses");
#if defined(__CUDA_ARCH__)
  for (int i = 0; i < kBytes / 16; ++i) static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from)[i];
#else
  std::memcpy(to, from, kBytes);
#endif
}

// kGroup elements of one array in registers.
template <typename T>
struct alignas(16) Group {
  T values[kGroup];

  STRATA_HOST_DEVICE void load(const T* from) { copy_aligned<sizeof(Group)>(values, from); }
  STRATA_HOST_DEVICE void store(T* to) const { copy_aligned<sizeof(Group)>(to, values); }
};

template <typename Param, typename Grad>
STRATA_HOST_DEVICE inline void update_group(const UpdateConstants& constants, const AdamwRun& run, std::int64_t first) {
  Group<typename Grad::Stored> grad;
  Group<float> master, exp_avg, exp_avg_sq;
  grad.load(static_cast<const typename Grad::Stored*>(run.grad) + first);
  master.load(run.master + first);
  exp_avg.load(run.exp_avg + first);
  exp_avg_sq.load(run.exp_avg_sq + first);
  for (int k = 0; k < kGroup; ++k) {
    const UpdateElement updated =
        update_element<OptimizerKind::AdamW>(constants, {master.values[k], exp_avg.values[k], exp_avg_sq.values[k]},
                                             Grad::decode(grad.values[k]), run.decay_factor);
    master.values[k] = updated.master;
    exp_avg.values[k] = updated.moment1;
    exp_avg_sq.values[k] = updated.moment2;
  }
  master.store(run.master + first);
  exp_avg.store(run.exp_avg + first);
  exp_avg_sq.store(run.exp_avg_sq + first);
  if constexpr (!std::is_same_v<Param, encoding::F32>) {
    Group<typename Param::Stored> param;
    for (int k = 0; k < kGroup; ++k) param.values[k] = Param::encode(master.values[k]);
    param.store(static_cast<typename Param::Stored*>(run.param) + first);
  }
}

template <typename Param, typename Grad>
STRATA_HOST_DEVICE inline void update_single(const UpdateConstants& constants, const AdamwRun& run, std::int64_t i) {
  const float grad = Grad::decode(static_cast<const typename Grad::Stored*>(run.grad)[i]);
  const UpdateElement updated = update_element<OptimizerKind::AdamW>(
      constants, {run.master[i], run.exp_avg[i], run.exp_avg_sq[i]}, grad, run.decay_factor);
  run.master[i] = updated.master;
  run.exp_avg[i] = updated.moment1;
  run.exp_avg_sq[i] = updated.moment2;
  if constexpr (!std::is_same_v<Param, encoding::F32>) {
    static_cast<typename Param::Stored*>(run.param)[i] = Param::encode(updated.master);
  }
}

// The share of thread number `thread` out of `threads`. Shares are disjoint and cover the run, so threads need no
// order.
template <typename Param, typename Grad>
STRATA_HOST_DEVICE inline void adamw_thread(const UpdateConstants& constants, const AdamwRun& run, RunShape shape,
                                            std::int64_t thread, std::int64_t threads) {
  for (std::int64_t group = thread; group < shape.groups; group += threads) {
    update_group<Param, Grad>(constants, run, shape.head + group * kGroup);
  }
  const std::int64_t grouped = shape.groups * kGroup;
  for (std::int64_t single = thread; single < run.numel - grouped; single += threads) {
    update_single<Param, Grad>(constants, run, single < shape.head ? single : single + grouped);
  }
}

}  // namespace strata::kernels
