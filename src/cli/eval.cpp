// strata eval: loss and perplexity.
#include <cmath>
#include <filesystem>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/datasets.h"
#include "cli/engine_options.h"
#include "cli/exit_code.h"
#include "core/error.h"
#include "core/log.h"
#include "core/scratch_folder.h"
#include "data/sampler.h"
#include "engine/engine.h"

namespace strata::cli {

int run_eval(const Arguments& arguments) {
  CLI::App app("Loss (mean over target tokens) and perplexity of a model on a file of text, chats or tokens.", "eval");
  EngineOptions options;
  engine::DatasetConfig dataset;
  bool json = false;
  add_engine_options(app, options);
  app.add_option("--data", dataset.path, "text, JSONL or .tok file")->required();
  app.add_option("--type", dataset.type, "auto, text, completion, chat or tokens");
  app.add_flag("--json", json, "print one JSON object");
  if (!parse_options(app, arguments)) return kDone;

  const engine::EngineConfig config = engine_config_of(options);  // refuses before the data is read
  const ScratchFolder scratch(std::filesystem::temp_directory_path(), "strata-eval");  // for tokenized data
  const data::TokenFile file =
      data::TokenFile::open(prepare_file(options.model, dataset, options.max_tokens, scratch.path() / "data.tok"));
  const std::unique_ptr<engine::Engine> engine = engine::Engine::create(config);
  if (file.max_token() >= engine->model_config().vocab_size) {
    throw DataError("the data has token id " + std::to_string(file.max_token()) + ", but the model's vocab_size is " +
                    std::to_string(engine->model_config().vocab_size));
  }
  log::info(engine->description());
  data::Sampler sampler(file, options.batch_size, options.max_tokens, 0, data::Sampler::Order::Sequential);
  engine::EvalSummary total;
  for (std::uint64_t i = 0; i < sampler.batches_per_epoch(); ++i) {
    const engine::EvalSummary part = engine->evaluate(sampler.next());
    total.loss_sum += part.loss_sum;
    total.tokens += part.tokens;
  }
  if (total.tokens == 0) throw DataError(dataset.path + " has no token to predict");
  const double loss = total.loss_sum / static_cast<double>(total.tokens);
  if (json) {
    std::cout << nlohmann::json{{"loss", loss}, {"perplexity", std::exp(loss)}, {"tokens", total.tokens}}.dump()
              << "\n";
  } else {
    std::cout << "loss " << loss << "  perplexity " << std::exp(loss) << "  tokens " << total.tokens << "\n";
  }
  return kDone;
}

}  // namespace strata::cli
