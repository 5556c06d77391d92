// The header of one safetensors file, checked whole.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hf/file_handle.h"
#include "hf/safetensors.h"

namespace strata::hf {

// The bound of the reference implementation (safetensors, MAX_HEADER_SIZE).
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their data
  std::map<std::string, std::string> metadata;
};

// Throws: DataError naming the file and what is wrong; IoError.
SafetensorsHeader read_safetensors_header(const FileHandle& file);

}  // namespace strata::hf
