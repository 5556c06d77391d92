// In place of torch for the tests of src/cuda: nothing, or what a test puts there.
#pragma once

#include "cuda/torch_part.h"

namespace strata::test {

// While it lives, torch computes on the device by `part`.
class TorchStandIn {
 public:
  explicit TorchStandIn(const cuda::TorchPart& part);
  ~TorchStandIn();
  TorchStandIn(const TorchStandIn&) = delete;
  TorchStandIn& operator=(const TorchStandIn&) = delete;
};

}  // namespace strata::test
