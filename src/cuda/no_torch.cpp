#include "cuda/torch_part.h"

namespace strata::cuda {

TorchPlace torch_place() {
  return TorchPlace::Nowhere;
}

const TorchPart* torch_part() {
  return nullptr;
}

}  // namespace strata::cuda
