#include "cli/run_options.h"

#include "core/error.h"

namespace strata::cli {

RunOptions read_run_options(const Arguments& arguments, std::vector<std::string> required, std::size_t ranks) {
  RunOptions options;
  engine::RunConfigSource source;
  source.required = std::move(required);
  source.world_size = static_cast<std::int64_t>(ranks);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--help" || word == "-h") {
      options.help = true;
      return options;
    }
    if (word == "--json") {
      options.output = RunOptions::Output::Json;
    } else if (word == "--config" || word.rfind("--config=", 0) == 0) {
      if (!source.file.empty()) throw ConfigError("--config was given twice");
      if (word != "--config") {
        source.file = word.substr(std::string("--config=").size());
      } else {
        if (i + 1 == arguments.size()) throw ConfigError("--config needs a file");
        source.file = arguments[++i];
      }
    } else {
      source.flags.push_back(word);
    }
  }
  options.config = engine::load_run_config(source);
  return options;
}

}  // namespace strata::cli
