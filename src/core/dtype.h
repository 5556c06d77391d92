// Element types of tensors in memory and in files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace strata {

enum class DType : std::uint8_t { F32, BF16, F16, F64, I64, I32, I16, U16, I8, U8, Bool };

constexpr std::size_t bytes_of(DType dtype) {
  switch (dtype) {
    case DType::F64:
    case DType::I64:
      return 8;
    case DType::F32:
    case DType::I32:
      return 4;
    case DType::BF16:
    case DType::F16:
    case DType::I16:
    case DType::U16:
      return 2;
    case DType::I8:
    case DType::U8:
    case DType::Bool:
      return 1;
  }
  return 0;
}

// The safetensors spelling: "F32", "BF16", ...
std::string_view name_of(DType dtype);
std::optional<DType> dtype_from_name(std::string_view safetensors_name);

// Of the types that parameters and gradients may have: kIndex of its encoding (core/encodings.h), the index in tables
// by type. Throws: ContractViolation for anything but F32, BF16 and F16.
std::size_t encoding_index(DType dtype);

}  // namespace strata
