// The loops of state_scalar.cpp in vectors, equal to them bit for bit; see update_simd.cpp.
#include <algorithm>

#include "cpu_adam/simd_targets.h"
#include "cpu_adam/update_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_adam/state_simd.cpp"
#include "hwy/foreach_target.h"  // includes this file again for each target
#include "hwy/highway.h"

#if STRATA_IS_VECTOR_TARGET
#include "cpu_adam/coder-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu_adam::HWY_NAMESPACE {
namespace {

void round_stochastically(const StochasticRun& run) {
  const Floats d;
  const Bits du;
  const auto first_key = hn::Set(du, run.key.first);
  const auto second_key = hn::Set(du, run.key.second);
  auto index = hn::Iota(du, run.first_index);
  std::size_t i = 0;
  for (; i + kLanes <= run.numel; i += kLanes, index = hn::Add(index, hn::Set(du, std::uint32_t{kLanes}))) {
    const auto word = random_words(index, first_key, second_key);
    store_rounded(hn::LoadU(d, run.values[0] + i), hn::And(word, hn::Set(du, 0xffffu)), run.codes[0] + i);
    if (run.moments == 2) {
      store_rounded(hn::LoadU(d, run.values[1] + i), hn::ShiftRight<16>(word), run.codes[1] + i);
    }
  }
  if (i == run.numel) return;
  StochasticRun rest = run;
  for (std::size_t k = 0; k < run.moments; ++k) {
    rest.values[k] += i;
    rest.codes[k] += i;
  }
  rest.numel -= i;
  rest.first_index += static_cast<std::uint32_t>(i);
  scalar::state_kernels().round_stochastically(rest);
}

void join_master(const std::uint16_t* param, const std::uint16_t* remainder, float* master, std::size_t numel) {
  const Floats d;
  std::size_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) hn::StoreU(load_joined(d, param + i, remainder + i), d, master + i);
  if (i < numel) scalar::state_kernels().join_master(param + i, remainder + i, master + i, numel - i);
}

void split_master(const float* master, std::uint16_t* param, std::uint16_t* remainder, std::size_t numel) {
  const Floats d;
  std::size_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) {
    const auto value = hn::LoadU(d, master + i);
    store(d, Bf16(), value, param + i);
    hn::StoreU(low_halves(d, value), HalfBitsTag<Floats>(), remainder + i);
  }
  if (i < numel) scalar::state_kernels().split_master(master + i, param + i, remainder + i, numel - i);
}

constexpr StateKernels kKernels = {
    .round_stochastically = &round_stochastically,
    .decode_block = {&Coder<true>::decode, &Coder<false>::decode},
    .encode_block = {&Coder<true>::encode, &Coder<false>::encode},
    .join_master = &join_master,
    .split_master = &split_master,
};

}  // namespace

const StateKernels* state_kernels() {
  return &kKernels;
}

}  // namespace strata::cpu_adam::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // STRATA_IS_VECTOR_TARGET

#if HWY_ONCE
namespace strata::cpu_adam {

const StateKernels* simd_state_kernels(Isa isa) {
  return STRATA_ON_ISA(isa, state_kernels());
}

}  // namespace strata::cpu_adam
#endif  // HWY_ONCE
