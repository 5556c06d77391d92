// PlainMath: ShardMath as plain loops, for tests of the code around it.
#pragma once

#include <algorithm>

#include "core/error.h"
#include "core/numeric.h"
#include "core/shard_checks.h"
#include "core/shard_optimizer.h"

namespace strata::test {

inline float load_element(const TensorSpan& span, std::size_t i) {
  if (span.dtype == DType::F32) return span.as<float>()[i];
  if (span.dtype == DType::F16) return half_to_float(span.as<std::uint16_t>()[i]);
  STRATA_EXPECTS(span.dtype == DType::BF16, "fp32, bf16 or fp16");
  return bf16_to_float(span.as<std::uint16_t>()[i]);
}

inline void store_element(const TensorSpan& span, std::size_t i, float value) {
  if (span.dtype == DType::F32) {
    span.as<float>()[i] = value;
  } else if (span.dtype == DType::F16) {
    span.as<std::uint16_t>()[i] = float_to_half(value);
  } else {
    STRATA_EXPECTS(span.dtype == DType::BF16, "fp32, bf16 or fp16");
    span.as<std::uint16_t>()[i] = float_to_bf16(value);
  }
}

// Stateless, so safe on any thread.
class PlainMath final : public ShardMath {
 public:
  void cast(TensorSpan destination, TensorSpan source) override {
    for (std::size_t i = 0; i < source.numel; ++i) store_element(destination, i, load_element(source, i));
  }
  void accumulate(TensorSpan destination, TensorSpan source) override {
    for (std::size_t i = 0; i < source.numel; ++i) {
      store_element(destination, i, load_element(destination, i) + load_element(source, i));
    }
  }
  void sum_rows(TensorSpan rows, std::size_t count, std::size_t into) override {
    check_rows(rows, count, into);
    const std::size_t row = rows.numel / count;
    for (std::size_t i = 0; i < row; ++i) {
      float sum = load_element(rows, i);
      for (std::size_t r = 1; r < count; ++r) sum += load_element(rows, r * row + i);
      store_element(rows, into * row + i, sum);
    }
  }
  void block_sums_of_squares(TensorSpan values, std::span<double> sums) override {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (std::size_t i = 0; i < values.numel; ++i) {
      const double value = load_element(values, i);
      sums[i / kNormBlock] += value * value;
    }
  }
  void quantize(TensorSpan message, TensorSpan values, BlockCode code) override {
    expect_message(message, values.numel, code);
    std::fill_n(message.data, message.numel, std::byte{0});
    for (std::size_t first = 0; first < values.numel; first += kScaleBlock) {
      const TensorSpan block = values.subspan(first, std::min(kScaleBlock, values.numel - first));
      std::uint32_t largest = 0;
      for (std::size_t i = 0; i < block.numel; ++i) {
        largest = std::max(largest, float_bits(load_element(block, i)) & 0x7fffffffu);
      }
      const BlockScale scale = block_scale(largest);
      scales_of(message, values.numel, code)[first / kScaleBlock] = scale.stored;
      for (std::size_t i = 0; i < block.numel; ++i) {
        put_code(message, first + i, encode_in_block(load_element(block, i), scale.inverse, largest_code(code)), code);
      }
    }
  }
  void dequantize(TensorSpan values, TensorSpan message, BlockCode code) override {
    expect_message(message, values.numel, code);
    for (std::size_t i = 0; i < values.numel; ++i) store_element(values, i, decoded(message, values.numel, i, code));
  }
  void dequantize_add(TensorSpan sum, TensorSpan message, BlockCode code) override {
    expect_message(message, sum.numel, code);
    STRATA_EXPECTS(sum.dtype == DType::F32, "a sum in fp32");
    for (std::size_t i = 0; i < sum.numel; ++i) sum.as<float>()[i] += decoded(message, sum.numel, i, code);
  }

 private:
  static void expect_message(TensorSpan message, std::size_t numel, BlockCode code) {
    STRATA_EXPECTS(message.dtype == DType::U8 && message.numel == message_bytes(code, numel), "a message of its size");
  }
  static float* scales_of(TensorSpan message, std::size_t numel, BlockCode code) {
    return reinterpret_cast<float*>(message.data + scales_offset(code, numel));
  }
  static void put_code(TensorSpan message, std::size_t i, std::int32_t value, BlockCode code) {
    auto* const codes = message.as<std::uint8_t>();
    if (code == BlockCode::Int8) {
      codes[i] = static_cast<std::uint8_t>(value);
    } else {
      codes[i / 2] = i % 2 == 0 ? pack_codes(value, 0) : pack_codes(low_code(codes[i / 2]), value);
    }
  }
  static float decoded(TensorSpan message, std::size_t numel, std::size_t i, BlockCode code) {
    const auto* const codes = message.as<std::uint8_t>();
    const std::int32_t value = code == BlockCode::Int8 ? static_cast<std::int8_t>(codes[i])
                               : i % 2 == 0            ? low_code(codes[i / 2])
                                                       : high_code(codes[i / 2]);
    return decode_in_block(value, scales_of(message, numel, code)[i / kScaleBlock], code_step(code));
  }
};

}  // namespace strata::test
