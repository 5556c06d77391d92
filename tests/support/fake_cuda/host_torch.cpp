// Torch beside the fake runtime: it computes on the host, in "device" memory.
#include "cuda/torch_part.h"

namespace strata::cuda {

TorchPlace torch_place() {
  return TorchPlace::Host;
}

const TorchPart* torch_part() {
  return nullptr;
}

}  // namespace strata::cuda
