#include "cuda/torch_stand_in.h"

namespace strata {
namespace {

const cuda::TorchPart* installed = nullptr;

}  // namespace

cuda::TorchPlace cuda::torch_place() {
  return installed != nullptr ? TorchPlace::Device : TorchPlace::Host;
}

const cuda::TorchPart* cuda::torch_part() {
  return installed;
}

test::TorchStandIn::TorchStandIn(const cuda::TorchPart& part) {
  installed = &part;
}

test::TorchStandIn::~TorchStandIn() {
  installed = nullptr;
}

}  // namespace strata
