// What goes into a Hugging Face folder beside the weights.
#pragma once

#include <filesystem>

#include "core/dtype.h"

namespace strata::hf {

// Copies, byte for byte and fsynced, what the model's users need and training does not change: tokenizer files, chat
// templates, generation_config.json, licence and model card. Weights, config.json and everything else stay behind;
// links are followed, as hub caches are made of them. `destination` must exist. Throws: IoError, DataError for a
// dangling link.
void copy_folder_files(const std::filesystem::path& source, const std::filesystem::path& destination);

// Writes `destination`/config.json: the file `source` with its keys, their order and the unknown ones kept, and only the
// element type of the weights set, in the dialect the source used (`dtype` or `torch_dtype`). Requires: dtype is F32,
// BF16 or F16. Throws: DataError for a missing or malformed source, IoError.
void write_config(const std::filesystem::path& source, const std::filesystem::path& destination, DType dtype);

}  // namespace strata::hf
