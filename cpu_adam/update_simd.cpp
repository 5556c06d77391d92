// The loops of update_scalar.cpp in vectors. Highway compiles this file once per target; every function is equal to its
// scalar definition bit for bit because it performs the same correctly rounded operations in the same order per
// element.
#include <type_traits>

#include "cpu_adam/simd_targets.h"
#include "cpu_adam/update_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_adam/update_simd.cpp"
#include "hwy/foreach_target.h"  // includes this file again for each target
#include "hwy/highway.h"

#if STRATA_IS_VECTOR_TARGET
#include "cpu_adam/vector_step-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu_adam::HWY_NAMESPACE {
namespace {

template <typename Storage, typename Grad>
UpdateRun rest_of(const UpdateRun& run, std::size_t first) {
  UpdateRun rest = run;
  if (run.param != nullptr) rest.param += first * sizeof(typename Storage::Stored);
  rest.grad += first * sizeof(typename Grad::Stored);
  rest.master += first * (std::is_same_v<Storage, Bf16Remainder> ? sizeof(std::uint16_t) : sizeof(float));
  for (float*& moment : rest.moments) {
    if (moment != nullptr) moment += first;
  }
  rest.numel -= first;
  return rest;
}

template <OptimizerKind kKind, typename Storage, typename Grad>
void update_run(const UpdateConstants& constants, const UpdateRun& run) {
  const VectorStep<kKind, Storage, Grad> step(constants, run);
  Fp32Moments moments(run);
  const std::size_t done = update_vectors<Storage>(step, moments, run.numel);
  if (done == run.numel) return;
  constexpr auto kind = static_cast<std::size_t>(kKind);
  scalar::update_kernels().update[kind][Storage::kIndex][Grad::kIndex](constants, rest_of<Storage, Grad>(run, done));
}

template <OptimizerKind kKind, typename Storage>
constexpr std::array<UpdateKernels::Update, kEncodings> kRow = {
    &update_run<kKind, Storage, F32>, &update_run<kKind, Storage, Bf16>, &update_run<kKind, Storage, F16>};

template <OptimizerKind kKind>
constexpr StorageTable<UpdateKernels::Update> kRows = {kRow<kKind, F32>, kRow<kKind, Bf16>, kRow<kKind, F16>,
                                                       kRow<kKind, Bf16Remainder>};

constexpr UpdateKernels kKernels = {.update = {kRows<OptimizerKind::AdamW>, kRows<OptimizerKind::Adam>,
                                               kRows<OptimizerKind::Lion>, kRows<OptimizerKind::Momentum>,
                                               kRows<OptimizerKind::Nesterov>, kRows<OptimizerKind::Sgd>}};

}  // namespace

const UpdateKernels* update_kernels() {
  return &kKernels;
}

}  // namespace strata::cpu_adam::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // STRATA_IS_VECTOR_TARGET

#if HWY_ONCE
namespace strata::cpu_adam {

const UpdateKernels* simd_update_kernels(Isa isa) {
  return STRATA_ON_ISA(isa, update_kernels());
}

}  // namespace strata::cpu_adam
#endif  // HWY_ONCE
