#include "bench/bench_step.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iomanip>
#include <sstream>
#include <vector>

#include "bench/statistics.h"
#include "core/bytes.h"
#include "core/error.h"
#include "engine/engine.h"

namespace strata::bench {
namespace {

using engine::Engine;
using engine::EngineConfig;
using engine::StepSummary;
using nlohmann::json;

// Holds a config.json while the bench runs.
class ModelFolder {
 public:
  explicit ModelFolder(const StepBenchOptions& options)
      : path_(options.dir / ("strata-bench-step-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
    const json config{{"model_type", "llama"},
                      {"architectures", {"LlamaForCausalLM"}},
                      {"vocab_size", options.vocab},
                      {"hidden_size", options.hidden},
                      {"intermediate_size", options.hidden * 8 / 3 / 64 * 64},
                      {"num_hidden_layers", options.layers},
                      {"num_attention_heads", options.hidden / 64},
                      {"num_key_value_heads", options.hidden / 64},
                      {"max_position_embeddings", options.tokens},
                      {"rms_norm_eps", 1e-5},
                      {"hidden_act", "silu"},
                      {"tie_word_embeddings", true},
                      {"torch_dtype", "bfloat16"}};
    std::ofstream out(path_ / "config.json");
    out << config.dump(2);
    if (!out.flush()) throw IoError({errno, "write", (path_ / "config.json").string(), 0, 0, {}});
  }
  ~ModelFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

data::Batch batch_of(const StepBenchOptions& options) {
  data::Batch batch;
  batch.sequences = 1;
  batch.tokens_each = options.tokens;
  for (std::int64_t t = 0; t < options.tokens; ++t) {
    batch.tokens.push_back((t * 7919 + 13) % options.vocab);
    batch.labels.push_back((t * 104729 + 1) % options.vocab);
  }
  batch.target_tokens = options.tokens;
  return batch;
}

EngineConfig base_config(const StepBenchOptions& options, const std::filesystem::path& model) {
  EngineConfig config;
  config.model = model;
  config.random_weights = true;
  config.batch_size = 1;
  config.max_tokens = options.tokens;
  config.device_budget = std::uint64_t{4} << 30;
  return config;
}

EngineConfig nvme_config(const StepBenchOptions& options, const std::filesystem::path& model) {
  EngineConfig config = base_config(options, model);
  config.param_home = offload::TierKind::Nvme;
  config.optimizer_home = offload::TierKind::Nvme;
  config.grad_home = offload::TierKind::Host;
  config.nvme_paths = {options.dir};
  config.host_budget = std::uint64_t{4} << 30;
  if (options.host_budget > 0) {
    config.host_budget = options.host_budget;
    return config;
  }
  // Gradients, and pages for reading ahead and writing behind, but no room for a cache.
  const std::uint64_t pages = std::uint64_t{48} << 20;
  config.slot_bytes = std::uint64_t{1} << 20;
  std::uint64_t grads = 0;
  for (const engine::PlanRow& row : Engine::plan(config).rows) {
    if (row.what == "gradients" || row.what == "gradient staging" || row.what == "file buffer") grads += row.bytes[1];
  }
  config.host_budget = grads + pages;
  return config;
}

json summary_of(const std::vector<StepSummary>& steps) {
  const auto of = [&steps](double StepSummary::*member) {
    std::vector<double> values;
    for (const StepSummary& step : steps) values.push_back(step.*member);
    return median(values);
  };
  return {{"seconds", of(&StepSummary::seconds)},           {"forward", of(&StepSummary::forward_seconds)},
          {"backward", of(&StepSummary::backward_seconds)}, {"optimizer", of(&StepSummary::optimizer_seconds)},
          {"stall", of(&StepSummary::stall_seconds)},       {"nvme_read_bytes", steps.back().nvme_read},
          {"nvme_written_bytes", steps.back().nvme_written}};
}

}  // namespace

json run_step_bench(const StepBenchOptions& options) {
  if (options.rounds < 2) throw ConfigError("bench step needs at least 2 rounds");
  if (options.hidden % 64 != 0) throw ConfigError("--hidden must be a multiple of 64");
  const ModelFolder folder(options);
  EngineConfig memory_config = base_config(options, folder.path());
  memory_config.host_budget = std::uint64_t{1} << 30;
  memory_config.param_home = memory_config.optimizer_home = memory_config.grad_home = offload::TierKind::Device;
  const std::unique_ptr<Engine> memory = Engine::create(memory_config);
  const std::unique_ptr<Engine> nvme = Engine::create(nvme_config(options, folder.path()));
  const data::Batch batch = batch_of(options);
  std::vector<StepSummary> in_memory, on_nvme;
  std::vector<double> ratios, exposed;
  bool bits_equal = true;
  for (std::int64_t round = 0; round <= options.rounds; ++round) {
    StepSummary a, b;
    if (round % 2 == 0) {
      a = memory->train_step({&batch, 1}, 1e-4);
      b = nvme->train_step({&batch, 1}, 1e-4);
    } else {
      b = nvme->train_step({&batch, 1}, 1e-4);
      a = memory->train_step({&batch, 1}, 1e-4);
    }
    bits_equal = bits_equal && a.loss == b.loss && a.grad_norm == b.grad_norm;
    if (round == 0) continue;
    in_memory.push_back(a);
    on_nvme.push_back(b);
    ratios.push_back(b.seconds / a.seconds);
    exposed.push_back(b.seconds - a.forward_seconds - a.backward_seconds);
  }
  return {{"parameters", memory->parameters()},
          {"tokens", options.tokens},
          {"rounds", options.rounds},
          {"description", nvme->description()},
          {"memory", summary_of(in_memory)},
          {"nvme", summary_of(on_nvme)},
          {"ratio", median(ratios)},
          {"ratio_mad", mad(ratios)},
          {"exposed_seconds", median(exposed)},
          {"bits_equal", bits_equal}};
}

std::string format_step_bench(const json& result) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(3);
  out << result["parameters"].get<std::uint64_t>() << " parameters, " << result["tokens"] << " tokens a step, "
      << result["rounds"] << " rounds; " << result["description"].get<std::string>() << "\n";
  out << "             seconds  forward  backward  optimizer  waiting\n";
  for (const char* row : {"memory", "nvme"}) {
    const json& r = result[row];
    out << "  " << std::left << std::setw(8) << row << std::right;
    for (const char* key : {"seconds", "forward", "backward", "optimizer", "stall"}) {
      out << std::setw(10) << r[key].get<double>();
    }
    out << "\n";
  }
  out << "NVMe a step: read " << format_bytes(result["nvme"]["nvme_read_bytes"]) << ", written "
      << format_bytes(result["nvme"]["nvme_written_bytes"]) << "\n"
      << "step on NVMe / step in memory: " << result["ratio"].get<double>() << " (MAD "
      << result["ratio_mad"].get<double>() << "); exposed beyond compute: " << result["exposed_seconds"].get<double>()
      << " s; same losses and norms: " << (result["bits_equal"].get<bool>() ? "yes" : "NO") << "\n";
  return out.str();
}

}  // namespace strata::bench
