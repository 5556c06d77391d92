// What `train` and `plan` take from the command line beside the keys of a run's configuration.
#pragma once

#include <string>
#include <vector>

#include "cli/commands.h"
#include "engine/run_config.h"

namespace strata::cli {

struct RunOptions {
  enum class Output : std::uint8_t { Text, Json } output = Output::Text;
  bool help = false;
  engine::RunConfig config;  // not read when help was asked for
};

// Takes out --config FILE, --json and --help; the rest are keys of the configuration, of a run of `ranks` processes.
// Throws: ConfigError.
RunOptions read_run_options(const Arguments& arguments, std::vector<std::string> required, std::size_t ranks = 1);

}  // namespace strata::cli
