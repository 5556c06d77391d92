// A model with a token that no training survives.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <vector>

#include "core/numeric.h"
#include "hf/safetensors.h"

namespace strata::test {

// Makes one row of the embedding of a bf16 model infinite, in its file: batches with that token have gradients that are
// not finite, others do not see it.
inline void ruin_row(const std::filesystem::path& model, std::int64_t row) {
  const hf::TensorCatalog catalog = hf::TensorCatalog::open_folder(model);
  const hf::TensorInfo& table = *catalog.find("model.embed_tokens.weight");
  const auto width = static_cast<std::size_t>(table.shape[1]);
  const std::vector<std::uint16_t> values(width, float_to_bf16(std::numeric_limits<float>::infinity()));
  std::fstream file(table.file, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(table.offset_bytes + static_cast<std::size_t>(row) * width * 2));
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(width * 2));
  ASSERT_TRUE(file.good() && table.dtype == DType::BF16);
}

}  // namespace strata::test
