// Makes ready what a run reads and the folder that it writes to: the part of a start that one rank does for all.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "cli/datasets.h"
#include "engine/run_config.h"

namespace strata::cli {

struct RunStart {
  std::optional<std::filesystem::path> resume;  // checkpoint to continue from
  PreparedData data;
  bool operator==(const RunStart&) const = default;
};

// Creates output_dir, sets checkpoints of an earlier run aside where the configuration says so, writes config.yaml and
// tokenizes the data. Throws: ConfigError, DataError, IoError.
RunStart start_run(const engine::RunConfig& config);

// For the other ranks: run_start_from(to_text(s)) == s.
std::string to_text(const RunStart& start);
RunStart run_start_from(const std::string& text);

}  // namespace strata::cli
