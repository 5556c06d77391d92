#include "cpu_adam/shard_kernels.h"

#include <string>

#include "core/error.h"
#include "cpu_adam/adam_scalar.h"

namespace strata::cpu_adam {

std::size_t encoding_index(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return F32::kIndex;
    case DType::BF16:
      return Bf16::kIndex;
    case DType::F16:
      return F16::kIndex;
    default:
      break;
  }
  contract_violation("encoding_index(dtype)",
                     "parameters and gradients are F32, BF16 or F16, not " + std::string(name_of(dtype)), __FILE__,
                     __LINE__);
}

const ShardKernels& kernels_for(Isa isa) {
  if (isa == Isa::Scalar) return scalar::kernels();
  const ShardKernels* kernels = simd_kernels(isa);
  STRATA_EXPECTS(kernels != nullptr, "this machine cannot run " + std::string(name_of(isa)));
  return *kernels;
}

}  // namespace strata::cpu_adam
