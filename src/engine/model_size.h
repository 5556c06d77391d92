// How many parameters a model has, from its config.json alone.
#pragma once

#include <cstdint>
#include <filesystem>

namespace strata::engine {

struct ModelSize {
  std::uint64_t parameters = 0;
  std::uint64_t first_group = 0;    // the embedding
  std::uint64_t largest_group = 0;  // gathered at once
};

// Reads `folder`/config.json. Throws: DataError.
ModelSize model_size(const std::filesystem::path& folder);

}  // namespace strata::engine
