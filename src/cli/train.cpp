// strata train: fine-tunes or trains from scratch.
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "cli/commands.h"
#include "cli/datasets.h"
#include "cli/exit_code.h"
#include "cli/launch_environment.h"
#include "cli/metrics_log.h"
#include "cli/nproc.h"
#include "cli/progress.h"
#include "cli/rank_job.h"
#include "cli/run_folder.h"
#include "cli/run_options.h"
#include "cli/run_ranks.h"
#include "cli/signals.h"
#include "cli/train_report.h"
#include "core/log.h"
#include "core/trace.h"
#include "engine/cuda_plugin.h"
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
--nproc N trains with N ranks on this machine; torchrun, mpirun and srun start them on one or several.

  strata train --model ./smollm2 --data play.txt --output-dir out --max-steps 30 --learning-rate 1e-5 \
      --max-seq-length 256 --per-device-train-batch-size 1 \
      --strata.budgets.device 640MiB --strata.budgets.host 384MiB --strata.nvme.paths /mnt/nvme
)";

constexpr std::size_t kSampleTokens = 32;

// The continuation of the sample prompt, which shows what training changed. Collective; the text is rank 0's.
class Sampled {
 public:
  Sampled(const RunConfig& config, RankJob& job) : config_(config), job_(job) {
    if (!asked_for()) return;
    const std::string ids = job.from_rank_zero("the sample prompt", [&] {
      std::ostringstream text;
      for (const std::int64_t id : encode(config.model_name_or_path, config.sample_prompt)) text << id << ' ';
      return text.str();
    });
    std::istringstream in(ids);
    for (std::int64_t id = 0; in >> id;) prompt_.push_back(id);
  }

  bool asked_for() const { return !config_.sample_prompt.empty(); }

  std::string continued_by(engine::Engine& engine) const {
    const auto room = static_cast<std::size_t>(config_.max_seq_length);
    if (prompt_.empty() || prompt_.size() >= room) return "(the sample prompt does not fit max_seq_length)";
    const std::vector<std::int64_t> made = engine.generate(prompt_, std::min(kSampleTokens, room - prompt_.size()));
    return job_.leads() ? decode(config_.model_name_or_path, made) : std::string();
  }

 private:
  const RunConfig& config_;
  const RankJob& job_;
  std::vector<std::int64_t> prompt_;
};

void print_losses(const engine::TrainResult& result) {
  if (!result.first_eval_loss || !result.last_eval_loss) return;
  std::cout << std::fixed << std::setprecision(4) << "held-out loss " << *result.first_eval_loss << " -> "
            << *result.last_eval_loss << " (perplexity " << std::setprecision(2) << std::exp(*result.first_eval_loss)
            << " -> " << std::exp(*result.last_eval_loss) << ")\n";
}

// What the steps read.
struct Inputs {
  explicit Inputs(const RunStart& start) : resume(start.resume), train(data::TokenFile::open(start.data.train)) {
    if (start.data.validation) validation.emplace(data::TokenFile::open(*start.data.validation));
  }

  std::optional<fs::path> resume;
  data::TokenFile train;
  std::optional<data::TokenFile> validation;
};

int train(const RunConfig& config, RankJob& job, engine::Engine& engine, const Inputs& data) {
  const StopSignals signals;
  Progress progress(std::cerr, Terminal::of(STDERR_FILENO), config.logging_steps);
  std::optional<MetricsLog> metrics;
  Moved moved;
  engine::TrainerEvents events;
  if (job.leads()) {
    events.on_step = [&](const engine::StepReport& report) {
      moved.add(report);
      progress.step(report);
      if (metrics && is_logged_step(report.step, report.total_steps, config.logging_steps)) metrics->append(report);
    };
    events.on_evaluation = [&](const engine::EvalReport& report) {
      progress.evaluation(report);
      if (metrics) metrics->append(report);
    };
    events.on_message = [&](const std::string& text) { progress.message(text); };
  }
  events.stop_requested = [&] { return signals.requested(); };

  engine::Trainer trainer(engine, config, data.train, data.validation ? &*data.validation : nullptr, events);
  // After the trainer's checks: a run that is refused leaves no empty log behind.
  if (config.report_to == engine::ReportTo::Jsonl && job.leads()) metrics.emplace(config.output_dir);
  if (data.resume) trainer.resume(*data.resume);
  const Sampled sample(config, job);
  std::string before;
  if (sample.asked_for()) before = sample.continued_by(engine);
  const bool saves = config.save_strategy != engine::SaveStrategy::No;
  const engine::TrainResult result = trainer.run();
  if (job.leads()) progress.finish();
  if (result.end == engine::TrainResult::End::Stopped) {
    if (job.leads()) {
      std::cout << "stopped after step " << result.steps
                << (saves ? "; continue with --resume-from-checkpoint true\n" : "; nothing was saved\n");
    }
    // The signal may have come to another rank.
    return exit_code_of_signal(signals.requested() ? signals.received() : SIGTERM);
  }
  if (result.end == engine::TrainResult::End::WearLimit) {
    if (job.leads()) {
      std::cout << summary_table(engine, moved) << "stopped after step " << result.steps
                << ": one more step would pass strata.nvme.wear_limit; "
                << (saves ? "checkpoint: " + result.checkpoint.string() : "nothing was saved") << "\n";
    }
    return kDoesNotFit;
  }
  if (saves) engine.export_model(config.output_dir / "model");
  const std::string after = sample.asked_for() ? sample.continued_by(engine) : std::string();
  if (!job.leads()) return kDone;
  print_losses(result);
  if (sample.asked_for()) {
    std::cout << "prompt:   " << config.sample_prompt << "\nbefore:  " << before << "\nafter:   " << after << "\n";
  }
  std::cout << summary_table(engine, moved);
  if (saves) {
    std::cout << "model: " << (config.output_dir / "model").string() << "\ncheckpoint: " << result.checkpoint.string()
              << "\n";
  } else {
    std::cout << "save_strategy is no: neither a checkpoint nor the model was written\n";
  }
  return kDone;
}

int prepare_and_train(const RunConfig& config, RankJob& job) {
  if (config.strata.device == engine::DeviceChoice::Cuda) engine::require_cuda_devices();  // before the data is read
  const RunStart start = run_start_from(job.from_rank_zero("the data", [&] { return to_text(start_run(config)); }));
  const Inputs inputs(start);
  engine::EngineConfig engine_config = engine::engine_config(config);
  job.join(engine_config);
  std::optional<Trace> trace;
  if (!config.strata.trace.empty()) engine_config.trace = &trace.emplace();
  const TraceFile trace_file(trace ? &*trace : nullptr, job.own_path(config.strata.trace));
  const std::unique_ptr<engine::Engine> engine = engine::Engine::create(engine_config);
  log::info(std::to_string(engine->parameters()) + " parameters; " + engine->description());
  if (config.weight_decay > 0) {
    log::info(decay_text(config.weight_decay, engine::parameter_groups(engine->model_config())));
  }
  if (job.leads()) std::cerr << to_table(engine->memory_plan());
  return job.guard([&] { return train(config, job, *engine, inputs); });
}

}  // namespace

int run_train(const Arguments& arguments) {
  Arguments words = arguments;
  const Environment environment = environment_of_process();
  const std::optional<std::size_t> ranks = take_nproc(words, environment);
  const comm::RankInfo info = rank_from_environment(environment);
  // With --nproc too: what is wrong is said once.
  const RunOptions options = read_run_options(words, {"model_name_or_path", "datasets"}, ranks.value_or(info.world));
  if (options.help) {
    std::cout << kHelp << "\n" << engine::run_config_help();
    return kDone;
  }
  if (ranks.value_or(1) > 1) return run_ranks("train", words, *ranks);
  RankJob job(info, options.config.strata);
  return job.run([&] { return prepare_and_train(options.config, job); });
}

}  // namespace strata::cli
