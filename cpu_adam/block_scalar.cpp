#include <algorithm>

#include "cpu_adam/block_kernels.h"

namespace strata::cpu_adam {
namespace {

template <BlockCode kCode>
std::int32_t code_at(const std::uint8_t* codes, std::size_t i) {
  if constexpr (kCode == BlockCode::Int8) {
    return static_cast<std::int8_t>(codes[i]);
  } else {
    return i % 2 == 0 ? low_code(codes[i / 2]) : high_code(codes[i / 2]);
  }
}

template <BlockCode kCode, typename From>
float encode(const std::byte* values, std::uint8_t* codes, std::size_t numel) {
  const auto* from = stored_as<From>(values);
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < numel; ++i) largest = std::max(largest, float_bits(From::decode(from[i])) & 0x7fffffffu);
  const BlockScale scale = block_scale(largest);
  const auto code = [&](std::size_t i) {
    return i < numel ? encode_in_block(From::decode(from[i]), scale.inverse, largest_code(kCode)) : 0;
  };
  if constexpr (kCode == BlockCode::Int8) {
    for (std::size_t i = 0; i < numel; ++i) codes[i] = static_cast<std::uint8_t>(code(i));
  } else {
    for (std::size_t i = 0; i < numel; i += 2) codes[i / 2] = pack_codes(code(i), code(i + 1));
  }
  return scale.stored;
}

template <BlockCode kCode, typename To>
void decode(const std::uint8_t* codes, float scale, std::byte* values, std::size_t numel) {
  auto* to = stored_as<To>(values);
  for (std::size_t i = 0; i < numel; ++i) {
    to[i] = To::encode(decode_in_block(code_at<kCode>(codes, i), scale, code_step(kCode)));
  }
}

template <BlockCode kCode>
void decode_add(const std::uint8_t* codes, float scale, std::byte* sum, std::size_t numel) {
  auto* to = stored_as<F32>(sum);
  for (std::size_t i = 0; i < numel; ++i) to[i] += decode_in_block(code_at<kCode>(codes, i), scale, code_step(kCode));
}

template <BlockCode kCode>
constexpr std::array<BlockKernels::Encode, kEncodings> kEncodeRow = {&encode<kCode, F32>, &encode<kCode, Bf16>,
                                                                     &encode<kCode, F16>};
template <BlockCode kCode>
constexpr std::array<BlockKernels::Decode, kEncodings> kDecodeRow = {&decode<kCode, F32>, &decode<kCode, Bf16>,
                                                                     &decode<kCode, F16>};

constexpr BlockKernels kKernels = {
    .encode = {kEncodeRow<BlockCode::Int8>, kEncodeRow<BlockCode::Int4>},
    .decode = {kDecodeRow<BlockCode::Int8>, kDecodeRow<BlockCode::Int4>},
    .decode_add = {&decode_add<BlockCode::Int8>, &decode_add<BlockCode::Int4>},
};

}  // namespace

const BlockKernels& scalar::block_kernels() {
  return kKernels;
}

}  // namespace strata::cpu_adam
