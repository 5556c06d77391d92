#include "bench/step_alone.h"

#include <iomanip>
#include <memory>
#include <sstream>
#include <vector>

#include "bench/process_memory.h"
#include "bench/step_model.h"
#include "bench/step_summary.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/statistics.h"
#include "engine/engine.h"

namespace strata::bench {

using engine::StepSummary;
using nlohmann::json;

namespace {

constexpr double kLearningRate = 1e-4;

}  // namespace

json run_step_alone(const engine::EngineConfig& of_a_run, const StepMeasuring& measuring) {
  if (measuring.rounds < 1) throw ConfigError("bench step needs at least one round");
  if (of_a_run.comm && of_a_run.comm->world() > 1) throw ConfigError("bench step --alone is for one rank");
  Trace trace;
  engine::EngineConfig config = of_a_run;
  config.random_weights = true;
  if (!measuring.trace.empty()) config.trace = &trace;
  const std::unique_ptr<engine::Engine> engine = engine::Engine::create(config);
  const std::vector<data::Batch> batches = batches_of(config, engine->model_config().vocab_size);
  std::vector<StepSummary> steps;
  std::vector<double> ideal, fraction, losses;
  (void)engine->train_step(batches, kLearningRate);  // the first one has no update of a step before beside it
  for (std::int64_t round = 0; round < measuring.rounds; ++round) {
    const StepSummary& step = steps.emplace_back(engine->train_step(batches, kLearningRate));
    losses.push_back(step.loss);
    if (!step.ideal_seconds) continue;
    ideal.push_back(*step.ideal_seconds);
    fraction.push_back(*step.ideal_seconds / step.seconds);
  }
  if (!measuring.trace.empty()) trace.write(measuring.trace);
  const bool known = !ideal.empty();
  return {{"parameters", engine->parameters()},
          {"tokens", tokens_of(config)},
          {"rounds", measuring.rounds},
          {"description", engine->description()},
          {"recomputed_layers",
           engine->model_config().num_hidden_layers - static_cast<std::int64_t>(engine->memory_plan().kept_graphs)},
          {"step", summary_of(steps)},
          {"losses", losses},
          {"ideal_seconds", known ? json(median(ideal)) : json()},
          {"ideal_fraction", known ? json(median(fraction)) : json()},
          {"binding_link", known ? json(steps.back().binding_link) : json()},
          {"to_device_bytes", steps.back().to_device},
          {"to_host_bytes", steps.back().to_host},
          {"peak_rss_bytes", peak_resident_bytes()}};
}

std::string format_step_alone(const json& result) {
  const json& step = result["step"];
  std::ostringstream out;
  out << std::fixed << std::setprecision(3) << result["parameters"] << " parameters, " << result["tokens"]
      << " tokens a step, " << result["rounds"] << " rounds; " << result["description"].get<std::string>() << "; "
      << result["recomputed_layers"] << " layers recomputed\n"
      << step["seconds"].get<double>() << " s a step: forward " << step["forward"].get<double>() << ", backward "
      << step["backward"].get<double>() << ", optimizer " << step["optimizer"].get<double>() << ", waiting "
      << step["stall"].get<double>() << "\n";
  if (!result["ideal_seconds"].is_null()) {
    out << "ideal " << result["ideal_seconds"].get<double>() << " s, bound by "
        << result["binding_link"].get<std::string>() << "; ideal / step " << result["ideal_fraction"].get<double>()
        << "\n";
  }
  out << "NVMe a step: read " << format_bytes(step["nvme_read_bytes"]) << ", written "
      << format_bytes(step["nvme_written_bytes"]) << "; to the device " << format_bytes(result["to_device_bytes"])
      << ", from it " << format_bytes(result["to_host_bytes"]) << "; peak RSS "
      << format_bytes(result["peak_rss_bytes"]) << "\n";
  return out.str();
}

}  // namespace strata::bench
