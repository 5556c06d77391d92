// strata generate: continues a prompt; weights stream through the same tiers as in training.
#include <iostream>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/datasets.h"
#include "cli/engine_options.h"
#include "cli/exit_code.h"
#include "core/error.h"
#include "core/log.h"
#include "engine/engine.h"

namespace strata::cli {

int run_generate(const Arguments& arguments) {
  CLI::App app("Continues a prompt with the likeliest tokens. The context runs anew for each token (no cache of keys).",
               "generate");
  EngineOptions options;
  std::string prompt;
  std::size_t max_new = 64;
  add_engine_options(app, options);
  app.add_option("--prompt", prompt, "text to continue")->required();
  app.add_option("--max-new-tokens", max_new, "how many tokens at most");
  if (!parse_options(app, arguments)) return kDone;

  const std::vector<std::int64_t> ids = encode(options.model, prompt);
  if (ids.empty()) throw ConfigError("--prompt is empty");
  if (ids.size() + max_new > static_cast<std::size_t>(options.max_tokens)) {
    throw ConfigError("the prompt has " + std::to_string(ids.size()) + " tokens; with --max-new-tokens " +
                      std::to_string(max_new) + " that exceeds --max-tokens " + std::to_string(options.max_tokens));
  }
  const std::unique_ptr<engine::Engine> engine = engine::Engine::create(engine_config_of(options));
  log::info(engine->description());
  std::cout << decode(options.model, engine->generate(ids, max_new)) << "\n";
  return kDone;
}

}  // namespace strata::cli
