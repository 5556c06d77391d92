#include "core/dtype.h"

#include <gtest/gtest.h>

#include <array>

namespace strata {
namespace {

struct Row {
  DType dtype;
  const char* name;
  std::size_t bytes;
};

// The spellings are those of the safetensors format.
constexpr std::array<Row, 11> kTable = {{{DType::F32, "F32", 4},
                                         {DType::BF16, "BF16", 2},
                                         {DType::F16, "F16", 2},
                                         {DType::F64, "F64", 8},
                                         {DType::I64, "I64", 8},
                                         {DType::I32, "I32", 4},
                                         {DType::I16, "I16", 2},
                                         {DType::U16, "U16", 2},
                                         {DType::I8, "I8", 1},
                                         {DType::U8, "U8", 1},
                                         {DType::Bool, "BOOL", 1}}};

TEST(DTypes, NamesAndSizesAreThoseOfSafetensors) {
  for (const Row& row : kTable) {
    EXPECT_EQ(name_of(row.dtype), row.name);
    EXPECT_EQ(bytes_of(row.dtype), row.bytes) << row.name;
  }
}

TEST(DTypes, EveryNameIsReadBack) {
  for (const Row& row : kTable) EXPECT_EQ(dtype_from_name(row.name), row.dtype);
}

TEST(DTypes, AnUnknownNameIsNoType) {
  for (const char* name : {"", "f32", "F8_E4M3", "F32 ", "U64", "Bool"}) {
    EXPECT_EQ(dtype_from_name(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace strata
