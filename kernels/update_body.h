// The fused optimizer step as one thread of a grid performs it, for moments in fp32 and bf16; update_block8_body.h has
// those in 8 bits. The optimizer and the gradient's type are the same for the whole grid, so they are switches at run
// time: branches that never diverge, in a kernel that waits for memory. C++17, for device and host.
#pragma once

#include <cstdint>

#include "kernels/update_storage.h"

namespace strata::kernels {

// Leaves elements that are not updated as they are.
template <OptimizerKind kKind, int N>
STRATA_HOST_DEVICE inline void update_as(const UpdateConstants& constants, Treatments treatments,
                                         Elements<N>& elements) {
  STRATA_UNROLL
  for (int k = 0; k < N; ++k) {
    const float decay = treatments.decayed >> k & 1u ? constants.decay : constants.no_decay;
    const UpdateElement updated = update_element<kKind>(
        constants, {elements.master[k], elements.moments[0][k], elements.moments[1][k]}, elements.grad[k], decay);
    if ((treatments.updated >> k & 1u) == 0) continue;
    elements.master[k] = updated.master;
    elements.moments[0][k] = updated.moment1;
    elements.moments[1][k] = updated.moment2;
  }
}

template <int N>
STRATA_HOST_DEVICE inline void update(const UpdateRun& run, Treatments treatments, Elements<N>& elements) {
  switch (run.kind) {
    case OptimizerKind::AdamW:
      return update_as<OptimizerKind::AdamW>(run.constants, treatments, elements);
    case OptimizerKind::Adam:
      return update_as<OptimizerKind::Adam>(run.constants, treatments, elements);
    case OptimizerKind::Lion:
      return update_as<OptimizerKind::Lion>(run.constants, treatments, elements);
    case OptimizerKind::Momentum:
      return update_as<OptimizerKind::Momentum>(run.constants, treatments, elements);
    case OptimizerKind::Nesterov:
      return update_as<OptimizerKind::Nesterov>(run.constants, treatments, elements);
    case OptimizerKind::Sgd:
      return update_as<OptimizerKind::Sgd>(run.constants, treatments, elements);
  }
}

template <typename Storage, typename Moments>
struct UpdateBody {
  static constexpr int kGroup = group_size(sizeof(typename Storage::Master) > sizeof(typename Moments::Stored)
                                               ? sizeof(typename Storage::Master)
                                               : sizeof(typename Moments::Stored));

  UpdateRun run;
  GroupShape<kGroup> shape;
  int moments;

  explicit UpdateBody(const UpdateRun& of)
      : run(of),
        shape(shape_of<kGroup>(of.numel, {{of.param, sizeof(typename Storage::Param)},
                                          {of.grad, grad_bytes(of)},
                                          {of.master, sizeof(typename Storage::Master)},
                                          {of.moments[0], sizeof(typename Moments::Stored)},
                                          {of.moments[1], sizeof(typename Moments::Stored)}})),
        moments(static_cast<int>(moments_of(of.kind))) {}

  STRATA_HOST_DEVICE void operator()(std::int64_t thread, std::int64_t threads) const {
    int interval = 0;
    for (std::int64_t group = thread; group < shape.groups; group += threads) {
      GroupPlace place;
      place.first = shape.first_of(group);
      place.treatments = treatments_of<kGroup>(run.intervals, place.first, shape.members_from(place.first), interval);
      place.whole = shape.aligned && place.treatments.updated == shape.kAll;
      if (place.treatments.updated != 0) update_group(place);
    }
  }

 private:
  // Loads stand together, the gradient's last because its branch needs the values.
  STRATA_HOST_DEVICE void update_group(const GroupPlace& place) const {
    Elements<kGroup> elements = {};
    Storage::load(run, place, elements);
    if (moments > 0) Moments::load(run, 0, place, elements);
    if (moments > 1) Moments::load(run, 1, place, elements);
    load_grad(run, place, elements);
    update(run, place.treatments, elements);
    Storage::store(run, place, elements);
    if (moments > 0) Moments::store(run, 0, place, elements);
    if (moments > 1) Moments::store(run, 1, place, elements);
  }
};

}  // namespace strata::kernels
