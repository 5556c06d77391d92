// Torch beside the fake runtime, as STRATA_TORCH_PLACE says. Host: it computes on the host, in "device" memory. Device:
// for what must not take the way of the host's memory; nothing may compute there.
#include "cuda/torch_part.h"

namespace strata::cuda {

TorchPlace torch_place() {
  return TorchPlace::STRATA_TORCH_PLACE;
}

const TorchPart* torch_part() {
  return nullptr;
}

}  // namespace strata::cuda
