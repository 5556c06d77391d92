#include <string>

#include "core/error.h"
#include "cpu_adam/block_kernels.h"
#include "cpu_adam/math_scalar.h"
#include "cpu_adam/update_kernels.h"

namespace strata::cpu_adam {
namespace {

template <typename Kernels>
const Kernels& chosen(Isa isa, const Kernels& scalar_kernels, const Kernels* simd_kernels) {
  if (isa == Isa::Scalar) return scalar_kernels;
  STRATA_EXPECTS(simd_kernels != nullptr, "this machine cannot run " + std::string(name_of(isa)));
  return *simd_kernels;
}

}  // namespace

std::size_t storage_index(DType param, MasterEncoding master) {
  if (master == MasterEncoding::Fp32 || param == DType::F32) return encoding_index(param);
  STRATA_EXPECTS(param == DType::BF16, "a remainder belongs to a BF16 parameter, not " + std::string(name_of(param)));
  return Bf16Remainder::kIndex;
}

const ShardKernels& shard_kernels(Isa isa) {
  return chosen(isa, scalar::kernels(), simd_shard_kernels(isa));
}

const UpdateKernels& update_kernels(Isa isa) {
  return chosen(isa, scalar::update_kernels(), simd_update_kernels(isa));
}

const StateKernels& state_kernels(Isa isa) {
  return chosen(isa, scalar::state_kernels(), simd_state_kernels(isa));
}

const BlockKernels& block_kernels(Isa isa) {
  return chosen(isa, scalar::block_kernels(), simd_block_kernels(isa));
}

}  // namespace strata::cpu_adam
