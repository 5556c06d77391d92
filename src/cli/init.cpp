// strata init: random weights for a config.json.
#include <iostream>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/exit_code.h"
#include "cli/signals.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/log.h"
#include "engine/init_model.h"

namespace strata::cli {
namespace {

constexpr const char* kAbout =
    "Writes a Hugging Face folder with random weights for a config.json (normal, deviation 0.02; norms 1, biases 0), "
    "as "
    "training from scratch begins. The same seed gives the same bytes. Takes some MiB of memory whatever the model's "
    "size. Writes no tokenizer: copy one into the folder, or train on token files.";

constexpr std::uint64_t kWorthSaying = 1'000'000'000;  // bytes: less is written at once

struct Stopped {};

}  // namespace

int run_init(const Arguments& arguments) {
  CLI::App app(kAbout, "init");
  std::string config, out;
  std::string dtype = "bf16";
  std::string shard_size = "5GB";
  engine::InitOptions options;
  app.add_option("--config", config, "a config.json, under any name")->required();
  app.add_option("--out", out, "the folder to make; must not exist or be empty")->required();
  app.add_option("--seed", options.seed, "of the weights (default 42)")->check(CLI::NonNegativeNumber);
  app.add_option("--dtype", dtype, "of the weights: bf16 (default), fp32")->check(CLI::IsMember({"bf16", "fp32"}));
  app.add_option("--shard-size", shard_size, "most bytes of weights in one file (default 5GB)");
  if (!parse_options(app, arguments)) return kDone;
  options.dtype = dtype == "fp32" ? DType::F32 : DType::BF16;
  options.max_shard_bytes = parse_bytes(shard_size);
  if (options.max_shard_bytes == 0) throw ConfigError("--shard-size must be greater than 0");

  const StopSignals signals;
  std::uint64_t tenths = 0;  // said so far
  options.on_progress = [&](std::uint64_t done, std::uint64_t all) {
    if (signals.requested()) throw Stopped{};
    if (all < kWorthSaying || done / (all / 10) <= tenths) return;
    tenths = done / (all / 10);
    log::info("wrote " + format_bytes(done) + " of " + format_bytes(all));
  };
  try {
    const engine::InitSummary made = engine::init_model(config, out, options);
    std::cout << out << ": " << made.parameters << " parameters, " << format_bytes(made.bytes) << " of " << dtype
              << " weights, config.json, no tokenizer\n";
  } catch (const Stopped&) {
    std::cerr << "stopped; nothing is left in " << out << "\n";
    return exit_code_of_signal(signals.received());
  }
  return kDone;
}

}  // namespace strata::cli
