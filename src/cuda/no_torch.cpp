#include "cuda/torch_part.h"

namespace strata::cuda {

const TorchPart* torch_part() {
  return nullptr;
}

}  // namespace strata::cuda
