#include "core/dtype.h"

#include <array>
#include <string>
#include <utility>

#include "core/encodings.h"
#include "core/error.h"

namespace strata {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 11> kNames = {{{DType::F32, "F32"},
                                                                        {DType::BF16, "BF16"},
                                                                        {DType::F16, "F16"},
                                                                        {DType::F64, "F64"},
                                                                        {DType::I64, "I64"},
                                                                        {DType::I32, "I32"},
                                                                        {DType::I16, "I16"},
                                                                        {DType::U16, "U16"},
                                                                        {DType::I8, "I8"},
                                                                        {DType::U8, "U8"},
                                                                        {DType::Bool, "BOOL"}}};

}  // namespace

std::string_view name_of(DType dtype) {
  for (const auto& [value, name] : kNames) {
    if (value == dtype) return name;
  }
  return "unknown";
}

std::optional<DType> dtype_from_name(std::string_view safetensors_name) {
  for (const auto& [value, name] : kNames) {
    if (name == safetensors_name) return value;
  }
  return std::nullopt;
}

std::size_t encoding_index(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return encoding::F32::kIndex;
    case DType::BF16:
      return encoding::Bf16::kIndex;
    case DType::F16:
      return encoding::F16::kIndex;
    default:
      break;
  }
  contract_violation("encoding_index(dtype)",
                     "parameters and gradients are F32, BF16 or F16, not " + std::string(name_of(dtype)), __FILE__,
                     __LINE__);
}

}  // namespace strata
