// The fake runtime as a device that torch computes on: for what must not take the way of the host's memory. Nothing may
// compute there.
#include "cuda/torch_part.h"

namespace strata::cuda {

TorchPlace torch_place() {
  return TorchPlace::Device;
}

const TorchPart* torch_part() {
  return nullptr;
}

}  // namespace strata::cuda
