// What collectives with coded messages and two hops must give, one element after the other, and tensors to try them on.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/block_codes.h"
#include "support/plain_math.h"

namespace strata::test {

using Elements = std::vector<float>;
using Code = std::optional<BlockCode>;

inline std::string text_of(const Code& code) {
  return !code ? "plain" : *code == BlockCode::Int8 ? "int8" : "int4";
}

// A tensor of a rank in memory of its own.
struct Tensor {
  Tensor(DType type, const Elements& elements) : dtype(type), bytes(elements.size() * bytes_of(type)) {
    for (std::size_t i = 0; i < elements.size(); ++i) store_element(span(), i, elements[i]);
  }
  TensorSpan span() { return {bytes.data(), dtype, bytes.size() / bytes_of(dtype)}; }
  Elements elements() {
    Elements all(span().numel);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = load_element(span(), i);
    return all;
  }

  DType dtype;
  std::vector<std::byte> bytes;
};

inline Elements rounded(const Elements& elements, DType dtype) {
  return Tensor(dtype, elements).elements();
}

// Row `row` of what rank `rank` brings: magnitudes that differ so much that the order of a sum and the blocks show in
// the bits.
inline Elements brought_row(std::uint64_t seed, std::size_t rank, std::size_t row, DType dtype, std::size_t numel) {
  std::mt19937_64 random((seed * 7919 + rank) * 7919 + row);
  Elements elements(numel);
  for (float& value : elements) {
    const auto bits = random();
    value = std::ldexp(static_cast<float>(bits % 4001) / 1000.0f - 2.0f, static_cast<int>(bits >> 32 & 7) - 4);
  }
  return rounded(elements, dtype);
}

// All rows of it.
inline Elements brought(std::uint64_t seed, std::size_t rank, DType dtype, std::size_t world, std::size_t row_numel) {
  Elements full;
  for (std::size_t row = 0; row < world; ++row) {
    const Elements part = brought_row(seed, rank, row, dtype, row_numel);
    full.insert(full.end(), part.begin(), part.end());
  }
  return full;
}

inline Elements row_of(const Elements& full, std::size_t world, std::size_t row) {
  const auto size = static_cast<std::ptrdiff_t>(full.size() / world);
  const auto first = full.begin() + static_cast<std::ptrdiff_t>(row) * size;
  return {first, first + size};
}

// A row through a message and back, in fp32.
inline Elements coded(const Elements& row, const Code& code) {
  if (!code) return row;
  Elements back;
  back.reserve(row.size());
  for (std::size_t first = 0; first < row.size(); first += kScaleBlock) {
    const std::size_t end = std::min(row.size(), first + kScaleBlock);
    std::uint32_t largest = 0;
    for (std::size_t i = first; i < end; ++i) largest = std::max(largest, float_bits(row[i]) & 0x7fffffffu);
    const BlockScale scale = block_scale(largest);
    for (std::size_t i = first; i < end; ++i) {
      back.push_back(
          decode_in_block(encode_in_block(row[i], scale.inverse, largest_code(*code)), scale.stored, code_step(*code)));
    }
  }
  return back;
}

// The sum of what ranks have for a row, in their order.
inline Elements summed(const std::vector<Elements>& parts, const Code& code, DType dtype) {
  if (parts.size() == 1) return parts[0];
  Elements sum = coded(parts[0], code);
  for (std::size_t r = 1; r < parts.size(); ++r) {
    const Elements part = coded(parts[r], code);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  return rounded(sum, dtype);
}

// Equal bits, or both NaN.
inline ::testing::AssertionResult same_elements(const Elements& a, const Elements& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " elements";
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (float_bits(a[i]) == float_bits(b[i]) || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
  }
  return ::testing::AssertionSuccess();
}

}  // namespace strata::test
