// strata bench step: a training step beside its computing alone.
#include <algorithm>
#include <iostream>
#include <map>
#include <optional>

#include <CLI/CLI.hpp>

#include "bench/bench_step.h"
#include "bench/requested_steps.h"
#include "bench/step_alone.h"
#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/exit_code.h"
#include "cli/nproc.h"
#include "cli/rank_job.h"
#include "cli/run_options.h"
#include "cli/run_ranks.h"
#include "core/bytes.h"
#include "core/error.h"
#include "engine/from_run_config.h"

namespace strata::cli {
namespace {

using Measuring = bench::StepMeasuring;

constexpr const char* kConfigHelp =
    "strata bench step --config F [--key value ...] [--rounds N] [--hide | --alone] [--json] measures the step of a "
    "run's "
    "configuration instead: model (its config.json; weights are random), batch, homes, states and budgets as `strata "
    "train` takes them; keys override the file. --nproc N, or a launcher, measures the step of several ranks: what "
    "each "
    "holds and sends. --alone leaves out the same step in memory, for models that do not fit there.";

// How many ranks to start here, and who this process is where it is one of them.
struct Ranks {
  std::size_t to_start = 1;
  comm::RankInfo info;
};

int run_ranks_of_bench(const Arguments& arguments, std::size_t ranks) {
  Arguments words{"step"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run_ranks("bench", words, ranks);
}

void show(const nlohmann::json& result, bool json) {
  std::cout << (json ? result.dump(2) + "\n" : bench::format_step_bench(result));
}

bool has_config(const Arguments& arguments) {
  for (const std::string& word : arguments) {
    if (word == "--config" || word.starts_with("--config=")) return true;
  }
  return false;
}

std::int64_t rounds_from(const std::string& text) {
  std::size_t used = 0;
  std::int64_t rounds = 0;
  try {
    rounds = std::stoll(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size() || rounds < 1)
    throw ConfigError("--rounds takes a number from 1, got \"" + text + "\"");
  return rounds;
}

// As strata.recompute.
std::optional<std::uint64_t> recomputed_layers_from(const std::string& text) {
  if (text == "auto") return std::nullopt;
  if (text == "all") return engine::RecomputeChoice::kAll;
  if (text == "none") return 0;
  const bool digits = !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == std::string::npos;
  if (!digits) throw ConfigError("--recompute takes auto, all, none or a number, got \"" + text + "\"");
  return std::stoull(text);
}

// Of a run's configuration. Takes out what is not a key of it.
int bench_configured_step(const Arguments& arguments, const Ranks& ranks) {
  Measuring measuring;
  bool alone = false;
  Arguments rest;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--hide") {
      measuring.hide = true;
    } else if (word == "--alone") {
      alone = true;
    } else if (word == "--rounds") {
      if (i + 1 == arguments.size()) throw ConfigError("--rounds needs a number");
      measuring.rounds = rounds_from(arguments[++i]);
    } else if (word.starts_with("--rounds=")) {
      measuring.rounds = rounds_from(word.substr(std::string("--rounds=").size()));
    } else {
      rest.push_back(word);
    }
  }
  if (alone && measuring.hide) throw ConfigError("--hide compares with the step in memory, which --alone leaves out");
  const RunOptions run =
      read_run_options(rest, {"model_name_or_path"}, std::max<std::size_t>(ranks.to_start, ranks.info.world));
  if (run.help) {
    std::cout << kConfigHelp << "\n";
    return kDone;
  }
  if (ranks.to_start > 1) return run_ranks_of_bench(arguments, ranks.to_start);
  RankJob job(ranks.info, run.config.strata);
  return job.run([&] {
    engine::EngineConfig config = engine::engine_config(run.config);
    job.join(config);
    measuring.trace = job.own_path(run.config.strata.trace);
    measuring.guard = [&](const std::function<int()>& body) { return job.guard(body); };
    const bool json = run.output == RunOptions::Output::Json;
    if (alone) {
      const nlohmann::json result = bench::run_step_alone(config, measuring);
      std::cout << (json ? result.dump(2) + "\n" : bench::format_step_alone(result));
      return kDone;
    }
    const nlohmann::json result = bench::run_step_bench(config, measuring);
    if (job.leads()) show(result, json);
    return kDone;
  });
}

}  // namespace

int run_bench_step(const Arguments& arguments) {
  Arguments words = arguments;
  const Environment environment = environment_of_process();
  const std::size_t to_start = take_nproc(words, environment).value_or(1);
  const Ranks ranks{to_start, rank_from_environment(environment)};
  if (has_config(words)) return bench_configured_step(words, ranks);
  CLI::App app("Alternating training steps of a random Llama, on NVMe and in memory.", "bench step");
  app.footer(kConfigHelp);
  Measuring measuring;
  bench::StepBenchOptions options;
  options.dir = ".";
  std::string host_budget;
  bool json = false;
  app.add_option("--dir", options.dir, "folder for the swap file")->check(CLI::ExistingDirectory);
  app.add_option("--hidden", options.hidden, "hidden size")->check(CLI::PositiveNumber);
  app.add_option("--inner", options.inner, "size inside the feed-forward block (default 8/3 of hidden)")
      ->check(CLI::PositiveNumber);
  app.add_option("--layers", options.layers, "blocks")->check(CLI::PositiveNumber);
  app.add_option("--heads", options.heads, "attention heads (default hidden / 64)")->check(CLI::PositiveNumber);
  app.add_option("--kv-heads", options.kv_heads, "key and value heads (default as many)")->check(CLI::PositiveNumber);
  app.add_option("--vocab", options.vocab, "vocabulary")->check(CLI::PositiveNumber);
  app.add_option("--tokens", options.tokens, "tokens of a micro-batch")->check(CLI::PositiveNumber);
  app.add_option("--micro-batches", options.engine.micro_batches, "of a step, for each rank")
      ->check(CLI::PositiveNumber);
  app.add_option("--zero-stage", options.engine.zero_stage, "what several ranks divide among them (3)")
      ->check(CLI::Range(0, 3));
  app.add_option("--rounds", measuring.rounds, "measured steps of each")->check(CLI::PositiveNumber);
  std::string master = "fp32", moments = "fp32";
  app.add_option("--master", master, "how the fp32 master weight is kept: fp32 (default), remainder");
  app.add_option("--moments", moments, "how moments are kept: fp32 (default), bf16, 8bit");
  std::string pages;
  app.add_option("--pages", pages, "without --host-budget: memory for reading ahead and writing behind");
  app.add_option("--trace", measuring.trace, "write a Chrome trace of the steps on NVMe");
  app.add_option("--host-budget", host_budget, "larger than the least: pages stay cached");
  std::string recompute = "auto";
  app.add_option(
      "--recompute", recompute,
      "layers computed again in backward: auto (those whose activations do not fit), all, none, or how many");
  const std::map<std::string, engine::Compute> types{
      {"auto", engine::Compute::Auto}, {"bf16", engine::Compute::ParamType}, {"fp32", engine::Compute::Fp32}};
  app.add_option("--compute", options.engine.compute, "type of matrix products: auto (probed), bf16, fp32")
      ->transform(CLI::CheckedTransformer(types));
  app.add_flag("--hide", measuring.hide, "look for the fewest tokens a step that hide what offloading adds");
  app.add_flag("--json", json, "print one JSON object");
  const std::map<std::string, bench::StatesHome> homes{
      {"compute", bench::StatesHome::Compute}, {"host", bench::StatesHome::Host}, {"nvme", bench::StatesHome::Nvme}};
  std::optional<bench::StatesHome> on_request;
  app.add_option(
         "--on-request", on_request,
         "states there only (host, nvme; compute: none), and a step for each line of standard input: for scripts; with "
         "several ranks each reads its own, so they are started by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT")
      ->transform(CLI::CheckedTransformer(homes));
  if (!parse_options(app, words)) return kDone;
  if (!pages.empty()) options.page_bytes = parse_bytes(pages);
  if (!host_budget.empty()) options.host_budget = parse_bytes(host_budget);
  options.engine.recomputed_layers = recomputed_layers_from(recompute);
  options.engine.optimizer.master = master_encoding_from_name(master);
  options.engine.optimizer.moments = moment_encoding_from_name(moments);
  if (ranks.to_start > 1) {
    if (on_request)
      throw ConfigError("--nproc gives no rank a standard input: start the ranks of --on-request by hand");
    return run_ranks_of_bench(words, ranks.to_start);
  }
  RankJob job(ranks.info, engine::StrataConfig());
  return job.run([&] {
    job.join(options.engine);
    const bench::Guard guard = [&](const std::function<int()>& body) { return job.guard(body); };
    if (on_request) {
      bench::run_requested_steps(options, *on_request, std::cin, std::cout, guard);
      return kDone;
    }
    measuring.guard = guard;
    measuring.trace = job.own_path(measuring.trace);
    const nlohmann::json result = bench::run_step_bench(options, measuring);
    if (job.leads()) show(result, json);
    return kDone;
  });
}

}  // namespace strata::cli
