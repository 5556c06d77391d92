#include <type_traits>

#include "cpu_adam/update_kernels.h"

namespace strata::cpu_adam {
namespace {

template <OptimizerKind kKind, typename Storage, typename Grad>
void update_run(const UpdateConstants& constants, const UpdateRun& run) {
  const auto* grad = stored_as<Grad>(run.grad);
  auto* param = stored_as<Storage>(run.param);
  for (std::size_t i = 0; i < run.numel; ++i) {
    float* const master = reinterpret_cast<float*>(run.master) + i;
    std::uint16_t* const remainder = reinterpret_cast<std::uint16_t*>(run.master) + i;
    UpdateElement element = {};
    if constexpr (std::is_same_v<Storage, Bf16Remainder>) {
      element.master = master_of(param[i], *remainder);
    } else {
      element.master = *master;
    }
    if constexpr (moments_of(kKind) > 0) element.moment1 = run.moments[0][i];
    if constexpr (moments_of(kKind) > 1) element.moment2 = run.moments[1][i];
    element = update_element<kKind>(constants, element, Grad::decode(grad[i]), run.decay);
    if constexpr (moments_of(kKind) > 0) run.moments[0][i] = element.moment1;
    if constexpr (moments_of(kKind) > 1) run.moments[1][i] = element.moment2;
    if constexpr (std::is_same_v<Storage, Bf16Remainder>) {
      param[i] = float_to_bf16(element.master);
      *remainder = remainder_of(element.master);
    } else {
      *master = element.master;
      if constexpr (!std::is_same_v<Storage, F32>) param[i] = Storage::encode(element.master);
    }
  }
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

const UpdateKernels& scalar::update_kernels() {
  return kKernels;
}

}  // namespace strata::cpu_adam
