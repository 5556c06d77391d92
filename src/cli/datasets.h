// From the files a user names to token files, through tools/prepare_data.py.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/run_config.h"

namespace strata::cli {

struct PreparedData {
  std::filesystem::path train;
  std::optional<std::filesystem::path> validation;
  bool operator==(const PreparedData&) const = default;
};

// Token files (.tok) are used as they are; others are tokenized into `folder`, or reused when nothing has changed.
// Throws: ConfigError, DataError (the tool has said on stderr which file and line).
PreparedData prepare_datasets(const engine::RunConfig& config, const std::filesystem::path& folder);
// One file for evaluation.
std::filesystem::path prepare_file(const std::string& model, const engine::DatasetConfig& dataset,
                                   std::int64_t max_tokens, const std::filesystem::path& out);

// Ids of a prompt and text of ids, by the model's tokenizer.
std::vector<std::int64_t> encode(const std::string& model, const std::string& text);
std::string decode(const std::string& model, const std::vector<std::int64_t>& ids);

}  // namespace strata::cli
