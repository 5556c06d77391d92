// strata train: fine-tunes or trains from scratch.
#include <unistd.h>

#include <array>
#include <cmath>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "cli/commands.h"
#include "cli/datasets.h"
#include "cli/exit_code.h"
#include "cli/metrics_log.h"
#include "cli/progress.h"
#include "cli/run_options.h"
#include "cli/signals.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/log.h"
#include "core/trace.h"
#include "engine/from_run_config.h"
#include "engine/parts.h"
#include "engine/trainer.h"

namespace strata::cli {
namespace {

namespace fs = std::filesystem;
using engine::RunConfig;

constexpr const char* kHelp = R"(usage: strata train --config run.yaml [--key value ...]

Fine-tunes every parameter of a Hugging Face folder on text, prompt/completion or chat data. Flags override the file.
Writes into output_dir: config.yaml (resolved), metrics.jsonl, checkpoint-N/, and model/, which transformers loads.
Ctrl-C saves a checkpoint and ends; --resume-from-checkpoint true continues with the same bits.

  strata train --model ./smollm2 --data play.txt --output-dir out --max-steps 30 --learning-rate 1e-5 \
      --max-seq-length 256 --per-device-train-batch-size 1 \
      --strata.budgets.device 640MiB --strata.budgets.host 384MiB --strata.nvme.paths /mnt/nvme
)";

constexpr std::size_t kSampleTokens = 32;

// Sums over the run, for the table at its end.
struct Moved {
  engine::StepTraffic bytes;
  std::int64_t steps = 0;
  double seconds = 0;
};

// What weight decay shrinks and what it spares.
std::string decay_text(double decay, const std::vector<zero::GroupDecl>& groups) {
  std::array<std::uint64_t, 2> tensors{}, numel{};
  for (const zero::GroupDecl& group : groups) {
    for (const zero::ParamDecl& param : group.params) {
      ++tensors[param.decay ? 0 : 1];
      numel[param.decay ? 0 : 1] += param.numel();
    }
  }
  std::ostringstream out;
  out << "weight decay " << decay << " of " << tensors[0] << " matrices (" << numel[0] << " parameters), not of the "
      << tensors[1] << " norms and biases (" << numel[1] << " parameters)";
  return out.str();
}

void check_output_dir(const RunConfig& config, const std::optional<fs::path>& resume) {
  std::error_code error;
  fs::create_directories(config.output_dir, error);
  if (error) throw IoError({error.value(), "create", config.output_dir.string(), 0, 0, "set another output_dir"});
  if (::access(config.output_dir.c_str(), W_OK) != 0) {
    throw IoError({errno, "write to", config.output_dir.string(), 0, 0, "set another output_dir"});
  }
  if (resume) return;
  for (const std::int64_t step : engine::checkpoint_steps(config.output_dir)) {
    const std::string name = "checkpoint-" + std::to_string(step);
    if (!config.overwrite_output_dir) {
      throw ConfigError(config.output_dir.string() +
                        " holds checkpoints of an earlier run: resume_from_checkpoint: true continues it, "
                        "overwrite_output_dir: true sets them aside (superseded-" +
                        name + ") and starts anew");
    }
    // Set aside, not deleted; and not left there, or a later resume would take them for this run's.
    const fs::path aside = config.output_dir / ("superseded-" + name);
    fs::remove_all(aside);
    fs::rename(config.output_dir / name, aside);
    log::info("set aside " + name + " of an earlier run as " + aside.string());
  }
}

std::optional<fs::path> checkpoint_to_resume(const RunConfig& config) {
  switch (config.resume_from_checkpoint.from) {
    case engine::ResumeConfig::From::Start:
      return std::nullopt;
    case engine::ResumeConfig::From::Path:
      engine::check_checkpoint(config.resume_from_checkpoint.path);
      return config.resume_from_checkpoint.path;
    case engine::ResumeConfig::From::Newest:
      break;
  }
  std::optional<fs::path> newest = engine::newest_checkpoint(config.output_dir);
  if (!newest) log::info("no checkpoint in " + config.output_dir.string() + " yet: starting from the model");
  return newest;
}

void write_resolved(const RunConfig& config) {
  std::ofstream out(config.output_dir / "config.yaml");
  out << engine::to_yaml(config);
  out.close();
  if (!out) throw IoError({errno, "write", (config.output_dir / "config.yaml").string(), 0, 0, {}});
}

// The continuation of the sample prompt, which shows what training changed.
std::string sample(engine::Engine& engine, const RunConfig& config) {
  const std::vector<std::int64_t> prompt = encode(config.model_name_or_path, config.sample_prompt);
  const auto room = static_cast<std::size_t>(config.max_seq_length);
  if (prompt.empty() || prompt.size() >= room) return "(the sample prompt does not fit max_seq_length)";
  const std::vector<std::int64_t> made = engine.generate(prompt, std::min(kSampleTokens, room - prompt.size()));
  return decode(config.model_name_or_path, made);
}

// A write rate that has fallen below the best one is that of a drive past its fast cache.
std::string drive_line(const DriveStats& drive) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(2) << "  drive " << drive.path << ": read at " << drive.read_rate * 1e-9
      << " GB/s, wrote at " << drive.best_write_rate * 1e-9 << " GB/s at best and " << drive.write_rate * 1e-9
      << " lately\n";
  return out.str();
}

// Writes the trace when the command ends, however it ends. A trace that cannot be written fails no training.
class TraceFile {
 public:
  TraceFile(const Trace* trace, fs::path path) : trace_(trace), path_(std::move(path)) {}
  ~TraceFile() {
    if (trace_ == nullptr) return;
    try {
      trace_->write(path_);
      log::info("trace: " + path_.string());
    } catch (const std::exception& error) {
      log::error(error.what());
    }
  }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

 private:
  const Trace* trace_;
  fs::path path_;
};

std::string summary_table(engine::Engine& engine, const Moved& moved) {
  const engine::PerTier peak = engine.peak_bytes();
  const engine::PerTier& budget = engine.memory_plan().budgets;
  std::ostringstream out;
  out << "peak of what the engine allocated, against its budgets:\n";
  for (const offload::TierKind tier : {offload::TierKind::Device, offload::TierKind::Host, offload::TierKind::Nvme}) {
    const auto t = static_cast<std::size_t>(tier);
    if (budget[t] == 0) continue;
    out << "  " << std::left << std::setw(8) << name_of(tier) << std::right << std::setw(12) << format_bytes(peak[t])
        << " of " << format_bytes(budget[t]) << "\n";
  }
  if (moved.steps == 0) return out.str();
  const auto steps = static_cast<std::uint64_t>(moved.steps);
  const auto line = [&](const char* what, std::uint64_t bytes) {
    out << "  " << std::left << std::setw(16) << what << std::right << std::setw(12) << format_bytes(bytes)
        << "   a step " << format_bytes(bytes / steps) << "\n";
  };
  out << "moved in " << moved.steps << " steps (" << std::fixed << std::setprecision(1) << moved.seconds << " s):\n";
  line("NVMe read", moved.bytes.nvme_read);
  line("NVMe written", moved.bytes.nvme_written);
  line("host to device", moved.bytes.h2d);
  line("device to host", moved.bytes.d2h);
  for (const DriveStats& drive : engine.drives()) out << drive_line(drive);
  return out.str();
}

}  // namespace

int run_train(const Arguments& arguments) {
  const RunOptions options = read_run_options(arguments, {"model_name_or_path", "datasets"});
  if (options.help) {
    std::cout << kHelp << "\n" << engine::run_config_help();
    return kDone;
  }
  const RunConfig& config = options.config;
  const std::optional<fs::path> resume = checkpoint_to_resume(config);
  check_output_dir(config, resume);
  write_resolved(config);
  const PreparedData data = prepare_datasets(config, config.output_dir / "data");
  const data::TokenFile train = data::TokenFile::open(data.train);
  std::optional<data::TokenFile> validation;
  if (data.validation) validation.emplace(data::TokenFile::open(*data.validation));

  engine::EngineConfig engine_config = engine::engine_config(config);
  std::optional<Trace> trace;
  if (!config.strata.trace.empty()) engine_config.trace = &trace.emplace();
  const TraceFile trace_file(trace ? &*trace : nullptr, config.strata.trace);
  const std::unique_ptr<engine::Engine> engine = engine::Engine::create(engine_config);
  log::info(std::to_string(engine->parameters()) + " parameters; " + engine->description());
  if (config.weight_decay > 0) {
    log::info(decay_text(config.weight_decay, engine::parameter_groups(engine->model_config())));
  }
  std::cerr << to_table(engine->memory_plan());

  const StopSignals signals;
  Progress progress(std::cerr, Terminal::of(STDERR_FILENO), config.logging_steps);
  std::optional<MetricsLog> metrics;
  Moved moved;
  engine::TrainerEvents events;
  events.on_step = [&](const engine::StepReport& report) {
    ++moved.steps;
    moved.seconds += report.step_seconds;
    moved.bytes.nvme_read += report.bytes.nvme_read;
    moved.bytes.nvme_written += report.bytes.nvme_written;
    moved.bytes.h2d += report.bytes.h2d;
    moved.bytes.d2h += report.bytes.d2h;
    progress.step(report);
    if (metrics && is_logged_step(report.step, report.total_steps, config.logging_steps)) metrics->append(report);
  };
  events.on_evaluation = [&](const engine::EvalReport& report) {
    progress.evaluation(report);
    if (metrics) metrics->append(report);
  };
  events.on_message = [&](const std::string& text) { progress.message(text); };
  events.stop_requested = [&] { return signals.requested(); };

  engine::Trainer trainer(*engine, config, train, validation ? &*validation : nullptr, events);
  // After the trainer's checks: a run that is refused leaves no empty log behind.
  if (config.report_to == engine::ReportTo::Jsonl) metrics.emplace(config.output_dir);
  if (resume) trainer.resume(*resume);
  std::string before;
  if (!config.sample_prompt.empty()) before = sample(*engine, config);
  const bool saves = config.save_strategy != engine::SaveStrategy::No;
  const engine::TrainResult result = trainer.run();
  progress.finish();
  if (result.end == engine::TrainResult::End::Stopped) {
    std::cout << "stopped after step " << result.steps
              << (saves ? "; continue with --resume-from-checkpoint true\n" : "; nothing was saved\n");
    return exit_code_of_signal(signals.received());
  }
  if (result.end == engine::TrainResult::End::WearLimit) {
    std::cout << summary_table(*engine, moved) << "stopped after step " << result.steps
              << ": one more step would pass strata.nvme.wear_limit; "
              << (saves ? "checkpoint: " + result.checkpoint.string() : "nothing was saved") << "\n";
    return kDoesNotFit;
  }
  if (saves) engine->export_model(config.output_dir / "model");
  if (result.first_eval_loss && result.last_eval_loss) {
    std::cout << std::fixed << std::setprecision(4) << "held-out loss " << *result.first_eval_loss << " -> "
              << *result.last_eval_loss << " (perplexity " << std::setprecision(2) << std::exp(*result.first_eval_loss)
              << " -> " << std::exp(*result.last_eval_loss) << ")\n";
  }
  if (!config.sample_prompt.empty()) {
    std::cout << "prompt:   " << config.sample_prompt << "\nbefore:  " << before
              << "\nafter:   " << sample(*engine, config) << "\n";
  }
  std::cout << summary_table(*engine, moved);
  if (saves) {
    std::cout << "model: " << (config.output_dir / "model").string() << "\ncheckpoint: " << result.checkpoint.string()
              << "\n";
  } else {
    std::cout << "save_strategy is no: neither a checkpoint nor the model was written\n";
  }
  return kDone;
}

}  // namespace strata::cli
