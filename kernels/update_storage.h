// How a group's parameters, masters, moments and gradients come from memory as fp32 and go back, for update_body.h and
// update_block8_body.h. C++17, for device and host.
#pragma once

#include <cstdint>

#include "core/encodings.h"
#include "kernels/group.h"
#include "kernels/update.h"

namespace strata::kernels {

// Where a group begins, which of its elements are updated and which decay, and whether all are, by wide accesses.
struct GroupPlace {
  std::int64_t first = 0;
  Treatments treatments;
  bool whole = false;
};

// Elements that are not updated hold anything.
template <int N>
struct Elements {
  float master[N];
  float moments[2][N];
  float grad[N];
};

template <typename T, int N>
STRATA_HOST_DEVICE inline Group<T, N> load_group(const void* array, const GroupPlace& place) {
  Group<T, N> group;
  group.load(static_cast<const T*>(array) + place.first, place.treatments.updated, place.whole);
  return group;
}

template <typename T, int N>
STRATA_HOST_DEVICE inline void store_group(const Group<T, N>& group, void* array, const GroupPlace& place) {
  group.store(static_cast<T*>(array) + place.first, place.treatments.updated, place.whole);
}

template <int N>
STRATA_HOST_DEVICE inline void load_floats(const void* array, const GroupPlace& place, float (&values)[N]) {
  const auto group = load_group<float, N>(array, place);
  STRATA_UNROLL
  for (int k = 0; k < N; ++k) values[k] = group.values[k];
}

template <int N>
STRATA_HOST_DEVICE inline void store_floats(const float (&values)[N], void* array, const GroupPlace& place) {
  Group<float, N> group;
  STRATA_UNROLL
  for (int k = 0; k < N; ++k) group.values[k] = values[k];
  store_group(group, array, place);
}

struct Fp32Master {
  using Master = float;
  template <int N>
  STRATA_HOST_DEVICE static void load(const UpdateRun& run, const GroupPlace& place, Elements<N>& elements) {
    load_floats(run.master, place, elements.master);
  }
};

// fp32 parameters are the master.
struct OwnMaster : Fp32Master {
  using Param = float;
  template <int N>
  STRATA_HOST_DEVICE static void store(const UpdateRun& run, const GroupPlace& place, const Elements<N>& elements) {
    store_floats(elements.master, run.master, place);
  }
};

// 16-bit parameters beside an fp32 master; they are only written.
template <typename Encoding>
struct WithMaster : Fp32Master {
  using Param = typename Encoding::Stored;
  template <int N>
  STRATA_HOST_DEVICE static void store(const UpdateRun& run, const GroupPlace& place, const Elements<N>& elements) {
    store_floats(elements.master, run.master, place);
    Group<Param, N> param;
    STRATA_UNROLL
    for (int k = 0; k < N; ++k) param.values[k] = Encoding::encode(elements.master[k]);
    store_group(param, run.param, place);
  }
};

// [Note: remainder]
struct WithRemainder {
  using Param = std::uint16_t;
  using Master = std::uint16_t;
  template <int N>
  STRATA_HOST_DEVICE static void load(const UpdateRun& run, const GroupPlace& place, Elements<N>& elements) {
    const auto param = load_group<Param, N>(run.param, place);
    const auto remainder = load_group<Master, N>(run.master, place);
    STRATA_UNROLL
    for (int k = 0; k < N; ++k) elements.master[k] = master_of(param.values[k], remainder.values[k]);
  }
  template <int N>
  STRATA_HOST_DEVICE static void store(const UpdateRun& run, const GroupPlace& place, const Elements<N>& elements) {
    Group<Param, N> param;
    Group<Master, N> remainder;
    STRATA_UNROLL
    for (int k = 0; k < N; ++k) {
      param.values[k] = float_to_bf16(elements.master[k]);
      remainder.values[k] = remainder_of(elements.master[k]);
    }
    store_group(param, run.param, place);
    store_group(remainder, run.master, place);
  }
};

struct Fp32Moments {
  using Stored = float;
  template <int N>
  STRATA_HOST_DEVICE static void load(const UpdateRun& run, int k, const GroupPlace& place, Elements<N>& elements) {
    load_floats(run.moments[k], place, elements.moments[k]);
  }
  template <int N>
  STRATA_HOST_DEVICE static void store(const UpdateRun& run, int k, const GroupPlace& place,
                                       const Elements<N>& elements) {
    store_floats(elements.moments[k], run.moments[k], place);
  }
};

// Rounded stochastically.
struct Bf16Moments {
  using Stored = std::uint16_t;
  template <int N>
  STRATA_HOST_DEVICE static void load(const UpdateRun& run, int k, const GroupPlace& place, Elements<N>& elements) {
    const auto group = load_group<Stored, N>(run.moments[k], place);
    STRATA_UNROLL
    for (int i = 0; i < N; ++i) elements.moments[k][i] = bf16_to_float(group.values[i]);
  }
  template <int N>
  STRATA_HOST_DEVICE static void store(const UpdateRun& run, int k, const GroupPlace& place,
                                       const Elements<N>& elements) {
    Group<Stored, N> group;
    STRATA_UNROLL
    for (int i = 0; i < N; ++i) {
      const std::uint32_t word = random_word(run.key, run.first_index + static_cast<std::uint32_t>(place.first + i));
      group.values[i] = float_to_bf16_stochastic(elements.moments[k][i], k == 0 ? word & 0xffffu : word >> 16);
    }
    store_group(group, run.moments[k], place);
  }
};

inline std::size_t grad_bytes(const UpdateRun& run) {
  return run.grad_type == encoding::F32::kIndex ? sizeof(float) : sizeof(std::uint16_t);
}

template <int N>
STRATA_HOST_DEVICE inline void load_grad(const UpdateRun& run, const GroupPlace& place, Elements<N>& elements) {
  if (run.grad_type == encoding::F32::kIndex) {
    load_floats(run.grad, place, elements.grad);
    return;
  }
  const auto grad = load_group<std::uint16_t, N>(run.grad, place);
  const bool is_bf16 = run.grad_type == encoding::Bf16::kIndex;
  STRATA_UNROLL
  for (int k = 0; k < N; ++k) {
    elements.grad[k] = is_bf16 ? bf16_to_float(grad.values[k]) : half_to_float(grad.values[k]);
  }
}

}  // namespace strata::kernels
