// Options that `eval` and `generate` share: a model, budgets, homes.
#pragma once

#include <memory>
#include <string>

#include "engine/engine_config.h"

namespace CLI {
class App;
}

namespace strata::cli {

// Texts as typed; engine_config_of() reads them. Must outlive the parsing.
struct EngineOptions {
  std::string model;
  std::string device_budget, host_budget, nvme_dir, param_home;
  std::string device = "auto";
  std::string compute = "auto";
  std::int64_t batch_size = 1;
  std::int64_t max_tokens = 512;
  bool fp32 = false;
};

void add_engine_options(CLI::App& app, EngineOptions& options);
// For evaluation and generation: no gradients, no optimizer states. Throws: ConfigError.
engine::EngineConfig engine_config_of(const EngineOptions& options);

// Parses; prints help and returns false when that was asked for. Throws: ConfigError for anything that does not parse.
bool parse_options(CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace strata::cli
