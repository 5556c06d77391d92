// From how parameters are stored to the body that takes them. C++17.
#pragma once

#include "kernels/update_body.h"

namespace strata::kernels {

inline bool is_valid(const UpdateRun& run) {
  return run.grad_type <= encoding::F16::kIndex && static_cast<std::size_t>(run.kind) < kOptimizerKinds;
}

// Returns launch(tag of the storage, run), or the error for a run that no body takes.
template <typename Launch>
int with_storage(const UpdateRun& run, Launch&& launch) {
  if (run.numel == 0) return kSuccess;
  if (!is_valid(run)) return kInvalidValue;
  switch (run.storage) {
    case Storage::F32:
      return launch(OwnMaster{});
    case Storage::Bf16:
      return launch(WithMaster<encoding::Bf16>{});
    case Storage::F16:
      return launch(WithMaster<encoding::F16>{});
    case Storage::Bf16Remainder:
      return launch(WithRemainder{});
  }
  return kInvalidValue;
}

template <typename Moments>
int launch_update(const UpdateRun& run, void* stream) {
  return with_storage(run, [&](auto storage) {
    const UpdateBody<decltype(storage), Moments> body(run);
    return launch_grid(body, body.shape.groups, stream);
  });
}

}  // namespace strata::kernels
