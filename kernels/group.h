// Runs of elements in wide accesses. C++17, for device and host.
//
// [Note: groups] A thread takes groups of N elements, where the widest array of a kernel fills 128 bits: 4 elements
// beside fp32 arrays, 8 where all are of 16 bits. So each access of a warp is one range of memory without gaps; 8 fp32
// elements in two accesses would write every sector in two halves. Groups begin where every array is aligned to its
// access, so the first and the last may reach past the ends of the run, and only some of their elements count. Those
// groups, and all groups where the arrays are not aligned alike, are accessed element by element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "kernels/launch.h"

namespace strata::kernels {

inline constexpr std::size_t kAccessBytes = 16;

// N of a kernel whose widest elements have this size.
constexpr int group_size(std::size_t widest_bytes) {
  return static_cast<int>(kAccessBytes / widest_bytes);
}

// An array's start and the size of its elements; null where there is no such array.
struct ArrayLayout {
  const void* data;
  std::size_t element_bytes;
};

// The groups of a run of `numel` elements: group g begins at element g * N - before.
template <int N>
struct GroupShape {
  static constexpr unsigned kAll = (1u << N) - 1;

  std::int64_t numel = 0;
  std::int64_t groups = 0;
  int before = 0;  // elements of group 0 that lie before the run
  bool aligned = false;

  STRATA_HOST_DEVICE std::int64_t first_of(std::int64_t group) const { return group * N - before; }
  // Bit k: element first + k is of the run.
  STRATA_HOST_DEVICE unsigned members_from(std::int64_t first) const {
    if (first >= numel) return 0;
    unsigned members = kAll;
    if (first < 0) members &= kAll << -first;
    if (numel - first < N) members &= (1u << (numel - first)) - 1;
    return members;
  }
  // Whether a group with these members goes in wide accesses.
  STRATA_HOST_DEVICE bool is_whole(unsigned members) const { return aligned && members == kAll; }
};

// Whether the accesses of groups of N are aligned from element `first` on. At most 128 bits are taken at once.
template <int N>
bool aligned_from(std::initializer_list<ArrayLayout> arrays, std::int64_t first) {
  for (const ArrayLayout& array : arrays) {
    if (array.data == nullptr) continue;
    const std::size_t group_bytes = N * array.element_bytes;
    const std::uintptr_t at =
        reinterpret_cast<std::uintptr_t>(array.data) + array.element_bytes * static_cast<std::size_t>(first);
    if (at % (group_bytes < kAccessBytes ? group_bytes : kAccessBytes) != 0) return false;
  }
  return true;
}

template <int N>
GroupShape<N> groups_from(std::int64_t numel, int before, bool aligned) {
  return {numel, (numel + before + N - 1) / N, before, aligned};
}

// The groups of arrays whose elements belong together.
template <int N>
GroupShape<N> shape_of(std::int64_t numel, std::initializer_list<ArrayLayout> arrays) {
  for (int head = 0; head < N; ++head) {
    if (aligned_from<N>(arrays, head)) return groups_from<N>(numel, (N - head) % N, true);
  }
  return groups_from<N>(numel, 0, false);
}

// Between memory and registers in accesses of kBytes, or of 128 bits; aligned to them.
#if defined(__CUDA_ARCH__)
template <std::size_t kBytes>
struct AccessOf;
template <>
struct AccessOf<2> {
  using Type = unsigned short;
};
template <>
struct AccessOf<4> {
  using Type = unsigned;
};
template <>
struct AccessOf<8> {
  using Type = uint2;
};
template <>
struct AccessOf<16> {
  using Type = uint4;
};

// The intrinsics of ordinary caching: plain assignments of 128 bits are cut up by the compiler where it sees fit.
template <std::size_t kBytes>
__device__ inline void load_aligned(void* to, const void* from) {
  using Access = typename AccessOf < kBytes<kAccessBytes ? kBytes : kAccessBytes>::Type;
  STRATA_UNROLL
  for (std::size_t i = 0; i < kBytes / sizeof(Access); ++i) {
    static_cast<Access*>(to)[i] = __ldca(static_cast<const Access*>(from) + i);
  }
}
template <std::size_t kBytes>
__device__ inline void store_aligned(void* to, const void* from) {
  using Access = typename AccessOf < kBytes<kAccessBytes ? kBytes : kAccessBytes>::Type;
  STRATA_UNROLL
  for (std::size_t i = 0; i < kBytes / sizeof(Access); ++i) {
    __stwb(static_cast<Access*>(to) + i, static_cast<const Access*>(from)[i]);
  }
}
#else
template <std::size_t kBytes>
inline void load_aligned(void* to, const void* from) {
  std::memcpy(to, from, kBytes);
}
template <std::size_t kBytes>
inline void store_aligned(void* to, const void* from) {
  std::memcpy(to, from, kBytes);
}
#endif

// A group of one array in registers. `array` is where the group begins; elements outside `members` are not touched.
template <typename T, int N>
struct alignas(N * sizeof(T) < kAccessBytes ? N * sizeof(T) : kAccessBytes) Group {
  T values[N];

  STRATA_HOST_DEVICE void load(const T* array, unsigned members, bool whole) {
    if (whole) {
      load_aligned<sizeof(Group)>(values, array);
    } else {
      STRATA_UNROLL
      for (int k = 0; k < N; ++k) values[k] = members >> k & 1u ? array[k] : T{};
    }
  }
  STRATA_HOST_DEVICE void store(T* array, unsigned members, bool whole) const {
    if (whole) {
      store_aligned<sizeof(Group)>(array, values);
    } else {
      STRATA_UNROLL
      for (int k = 0; k < N; ++k) {
        if (members >> k & 1u) array[k] = values[k];
      }
    }
  }
};

// The share of thread number `thread` of `threads` in body.load(group) and body.store(group, loaded), for all groups.
// Loads kAhead groups before it stores the first: a thread that waits for one load at a time leaves the memory idle.
template <int kAhead, typename Body>
STRATA_HOST_DEVICE inline void run_groups(const Body& body, std::int64_t groups, std::int64_t thread,
                                          std::int64_t threads) {
  for (std::int64_t group = thread; group < groups; group += kAhead * threads) {
    typename Body::Loaded loaded[kAhead];
    STRATA_UNROLL
    for (int a = 0; a < kAhead; ++a) {
      if (group + a * threads < groups) loaded[a] = body.load(group + a * threads);
    }
    STRATA_UNROLL
    for (int a = 0; a < kAhead; ++a) {
      if (group + a * threads < groups) body.store(group + a * threads, loaded[a]);
    }
  }
}

}  // namespace strata::kernels
