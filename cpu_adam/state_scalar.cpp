#include <algorithm>

#include "cpu_adam/update_kernels.h"

namespace strata::cpu_adam {
namespace {

void round_stochastically(const StochasticRun& run) {
  for (std::size_t i = 0; i < run.numel; ++i) {
    const std::uint32_t word = random_word(run.key, run.first_index + static_cast<std::uint32_t>(i));
    for (std::size_t k = 0; k < run.moments; ++k) {
      run.codes[k][i] = float_to_bf16_stochastic(run.values[k][i], k == 0 ? word & 0xffffu : word >> 16);
    }
  }
}

template <float (*kDecode)(std::uint8_t, float)>
void decode_block(const std::uint8_t* codes, float scale, float* values, std::size_t numel) {
  for (std::size_t i = 0; i < numel; ++i) values[i] = kDecode(codes[i], scale);
}

template <std::uint8_t (*kEncode)(float, float)>
float encode_block(const float* values, std::uint8_t* codes, std::size_t numel) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < numel; ++i) largest = std::max(largest, float_bits(values[i]) & 0x7fffffffu);
  const BlockScale scale = block_scale(largest);
  for (std::size_t i = 0; i < numel; ++i) codes[i] = kEncode(values[i], scale.inverse);
  return scale.stored;
}

void join_master(const std::uint16_t* param, const std::uint16_t* remainder, float* master, std::size_t numel) {
  for (std::size_t i = 0; i < numel; ++i) master[i] = master_of(param[i], remainder[i]);
}

void split_master(const float* master, std::uint16_t* param, std::uint16_t* remainder, std::size_t numel) {
  for (std::size_t i = 0; i < numel; ++i) {
    param[i] = float_to_bf16(master[i]);
    remainder[i] = remainder_of(master[i]);
  }
}

constexpr StateKernels kKernels = {
    .round_stochastically = &round_stochastically,
    .decode_block = {&decode_block<&decode_signed>, &decode_block<&decode_not_negative>},
    .encode_block = {&encode_block<&encode_signed>, &encode_block<&encode_not_negative>},
    .join_master = &join_master,
    .split_master = &split_master,
};

}  // namespace

const StateKernels& scalar::state_kernels() {
  return kKernels;
}

}  // namespace strata::cpu_adam
