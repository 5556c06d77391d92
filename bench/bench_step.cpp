#include "bench/bench_step.h"

#include <algorithm>
#include <functional>
#include <iomanip>
#include <sstream>
#include <utility>
#include <vector>

#include "bench/drive_rates.h"
#include "bench/measured_t_hide.h"
#include "bench/process_memory.h"
#include "bench/ranks_step.h"
#include "bench/span_overlap.h"
#include "bench/step_bounds.h"
#include "bench/step_model.h"
#include "bench/step_summary.h"
#include "bench/uncached_traffic.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/statistics.h"
#include "engine/engine.h"

namespace strata::bench {
namespace {

using engine::Engine;
using engine::EngineConfig;
using engine::StepSummary;
using nlohmann::json;

constexpr std::int64_t kFewestTokens = 16;     // of a micro-batch, where T_hide is looked for
constexpr std::int64_t kMostTimesTokens = 16;  // of what was asked for

// Share of the time with requests of a direction in flight during which a layer was computed.
json overlap_of(Trace& trace) {
  const std::vector<Trace::Span> spans = trace.spans();
  const Intervals compute = intervals_of(spans, trace.row("compute", Trace::Row::Sequential));
  const auto share = [&](const char* row) {
    const Intervals requests = intervals_of(spans, trace.row(row, Trace::Row::Overlapping));
    const double all = seconds_of(requests);
    return all > 0 ? seconds_of(common_part(requests, compute)) / all : 0;
  };
  return {{"read", share("nvme0 read")}, {"write", share("nvme0 write")}};
}

json traffic_of(const Engine& engine, const StepSummary& last) {
  const DriveTraffic uncached = uncached_traffic(engine);
  const auto parameters = static_cast<double>(engine.parameters());
  const auto all = static_cast<double>(uncached.read + uncached.written);
  json result{{"uncached_bytes", {{"read", uncached.read}, {"written", uncached.written}}},
              {"nvme_bytes_per_parameter",
               {{"read", static_cast<double>(last.nvme_read) / parameters},
                {"written", static_cast<double>(last.nvme_written) / parameters}}},
              {"cached_share", nullptr}};
  if (all > 0) result["cached_share"] = 1 - static_cast<double>(last.nvme_read + last.nvme_written) / all;
  return result;
}

// What is known with one drive only, not known.
void add_no_bounds(json& result) {
  for (const char* key : {"drive_rates", "ideal_seconds", "binding_link", "ratio_to_ideal", "ratio_to_ideal_mad",
                          "optimum_seconds", "ratio_to_optimum", "ratio_to_optimum_mad", "in_flight_during_compute"}) {
    result[key] = nullptr;
  }
}

json measure(EngineConfig config, const StepMeasuring& measuring, const engine::DriveRates& rates) {
  Trace trace;
  config.trace = &trace;
  forget_peak_resident_bytes();
  const std::unique_ptr<Engine> engine = Engine::create(config);
  const std::vector<data::Batch> batches = batches_of(config, engine->model_config().vocab_size);
  StepSummary b = settled_step(*engine, batches);
  const std::uint64_t peak = peak_resident_bytes();
  const std::unique_ptr<Engine> memory = engine_beside(compute_config_of(*engine));
  StepSummary a = settled_step(*memory, batches);
  bool bits_equal = a.loss == b.loss && a.grad_norm == b.grad_norm;
  std::vector<StepSummary> in_memory, steps;
  std::vector<double> seconds, compute, exposed, ratios, to_compute;
  for (std::int64_t round = 0; round < measuring.rounds; ++round) {
    if (round % 2 == 0) a = settled_step(*memory, batches);
    b = settled_step(*engine, batches);
    if (round % 2 == 1) a = settled_step(*memory, batches);
    bits_equal = bits_equal && a.loss == b.loss && a.grad_norm == b.grad_norm;
    in_memory.push_back(a);
    steps.push_back(b);
    seconds.push_back(b.seconds);
    compute.push_back(a.forward_seconds + a.backward_seconds);
    exposed.push_back(b.seconds - compute.back());
    ratios.push_back(b.seconds / a.seconds);
    to_compute.push_back(b.seconds / compute.back());
  }
  if (!measuring.trace.empty()) trace.write(measuring.trace);
  json result{{"parameters", engine->parameters()},
              {"tokens", tokens_of(config)},
              {"rounds", measuring.rounds},
              {"description", engine->description()},
              {"recomputed_layers", *memory->config().recomputed_layers},
              {"memory", summary_of(in_memory)},
              {"step", summary_of(steps)},
              {"total_seconds", median(seconds)},
              {"compute_seconds", median(compute)},
              {"exposed_seconds", median(exposed)},
              {"peak_rss_bytes", peak},
              {"ratio", median(ratios)},
              {"ratio_mad", mad(ratios)},
              {"ratio_to_compute", median(to_compute)},
              {"ratio_to_compute_mad", mad(to_compute)},
              {"bits_equal", bits_equal},
              {"t_hide", nullptr}};
  result.update(traffic_of(*engine, b));
  add_no_bounds(result);
  if (config.nvme_paths.size() == 1 && b.nvme_read + b.nvme_written > 0) {
    add_bounds(*engine, rates, in_memory, steps, result);
    result["in_flight_during_compute"] = overlap_of(trace);
  }
  return result;
}

std::string format_bounds(const json& result) {
  const auto number = [&result](const char* key) { return result[key].get<double>(); };
  const auto rate = [&result](const char* key) { return result["drive_rates"][key].get<double>() * 1e-9; };
  const auto share = [&result](const char* key) { return 100 * result["in_flight_during_compute"][key].get<double>(); };
  std::ostringstream out;
  out << std::fixed << std::setprecision(3) << "t*: " << number("ideal_seconds") << " s, bound by "
      << result["binding_link"].get<std::string>() << std::setprecision(2) << " (drive alone: read " << rate("read")
      << ", write " << rate("write") << ", mixed " << rate("mixed") << " GB/s); step / t*: " << std::setprecision(3)
      << number("ratio_to_ideal") << " (MAD " << number("ratio_to_ideal_mad") << ")\n"
      << "with the update after the norm: at least " << number("optimum_seconds")
      << " s; step / that: " << number("ratio_to_optimum") << " (MAD " << number("ratio_to_optimum_mad") << ")\n"
      << std::setprecision(0) << "of the time with requests in flight, a layer was computed during: reads "
      << share("read") << " %, writes " << share("write") << " %\n";
  return out.str();
}

// `with_tokens`: the configuration of a step with about so many tokens.
json measure_all(const EngineConfig& config, const StepMeasuring& measuring,
                 const std::function<EngineConfig(std::int64_t)>& with_tokens) {
  if (measuring.rounds < 1) throw ConfigError("bench step needs at least one round");
  if (config.comm && config.comm->world() > 1) return measure_ranks_step(config, measuring);
  const engine::DriveRates rates =
      config.nvme_paths.size() == 1 ? measure_drive_rates(config.nvme_paths.front()) : engine::DriveRates{};
  json result = measure(config, measuring, rates);
  if (!measuring.hide) return result;
  const std::int64_t start = tokens_of(config);
  const auto ratio_at = [&](std::int64_t tokens) -> std::optional<double> {
    if (tokens == start) return result["ratio_to_compute"].get<double>();
    try {
      return measure(with_tokens(tokens), {.rounds = measuring.rounds}, rates)["ratio_to_compute"].get<double>();
    } catch (const OutOfBudget&) {
      return std::nullopt;
    }
  };
  const std::vector<HidePoint> points =
      measure_t_hide(start, std::min(start, kFewestTokens * config.micro_batches), kMostTimesTokens * start, ratio_at);
  const HideEstimate estimate = estimate_t_hide(points);
  result["t_hide"] = {{"tokens", estimate.tokens}, {"bound", name_of(estimate.bound)}, {"points", json::array()}};
  for (const HidePoint& point : points) {
    result["t_hide"]["points"].push_back({{"tokens", point.tokens}, {"ratio", point.ratio}});
  }
  return result;
}

}  // namespace

json run_step_bench(const StepBenchOptions& options, const StepMeasuring& measuring) {
  StepBenchOptions roomy = options;
  roomy.positions = std::max(options.positions, kMostTimesTokens * options.tokens);
  const ModelFolder folder(roomy);
  return measure_all(nvme_config(options, folder.path()), measuring, [&](std::int64_t tokens) {
    StepBenchOptions other = options;
    other.tokens = tokens;
    return nvme_config(other, folder.path());
  });
}

json run_step_bench(const EngineConfig& of_a_run, const StepMeasuring& measuring) {
  EngineConfig config = of_a_run;
  config.random_weights = true;
  return measure_all(config, measuring, [&](std::int64_t tokens) {
    // First fewer or more sequences, then shorter ones.
    EngineConfig other = config;
    const std::int64_t each = std::max<std::int64_t>(1, tokens / config.micro_batches);
    other.batch_size = (each + config.max_tokens - 1) / config.max_tokens;
    other.max_tokens = each / other.batch_size;
    return other;
  });
}

std::string format_step_bench(const json& result) {
  if (result.contains("per_rank")) return format_ranks_step(result);
  const auto number = [&result](const char* key) { return result[key].get<double>(); };
  std::ostringstream out;
  out << std::fixed << std::setprecision(3) << result["parameters"] << " parameters, " << result["tokens"]
      << " tokens a step, " << result["rounds"] << " rounds; " << result["description"].get<std::string>() << "; "
      << result["recomputed_layers"] << " layers recomputed\n"
      << "               seconds   forward  backward optimizer   waiting\n";
  for (const auto& [key, label] : {std::pair("memory", "in memory"), std::pair("step", "as asked")}) {
    out << "  " << std::left << std::setw(10) << label << std::right;
    for (const char* column : {"seconds", "forward", "backward", "optimizer", "stall"}) {
      out << std::setw(10) << result[key][column].get<double>();
    }
    out << "\n";
  }
  const json& each = result["nvme_bytes_per_parameter"];
  out << "total " << number("total_seconds") << " s, compute alone " << number("compute_seconds") << " s, exposed "
      << number("exposed_seconds") << " s; step / compute " << number("ratio_to_compute") << " (MAD "
      << number("ratio_to_compute_mad") << "), step / step in memory " << number("ratio") << " (MAD "
      << number("ratio_mad") << ")\n"
      << "NVMe a step: read " << format_bytes(result["step"]["nvme_read_bytes"]) << ", written "
      << format_bytes(result["step"]["nvme_written_bytes"]) << std::setprecision(2) << " ("
      << each["read"].get<double>() << " + " << each["written"].get<double>() << " B a parameter)";
  if (!result["cached_share"].is_null()) {
    out << std::setprecision(1) << ", cached share " << 100 * number("cached_share") << " %";
  }
  out << "; peak RSS " << format_bytes(result["peak_rss_bytes"])
      << "; same losses and norms: " << (result["bits_equal"].get<bool>() ? "yes" : "NO") << "\n";
  if (!result["drive_rates"].is_null()) out << format_bounds(result);
  if (!result["t_hide"].is_null()) {
    const json& hide = result["t_hide"];
    out << std::setprecision(0) << "T_hide (step <= 1.1 x compute): "
        << (hide["bound"] == "between" ? "" : hide["bound"].get<std::string>() + " ") << hide["tokens"].get<double>()
        << " tokens a step; measured" << std::setprecision(2);
    for (const json& point : hide["points"])
      out << " " << point["tokens"] << ": " << point["ratio"].get<double>() << "x";
    out << "\n";
  }
  return out.str();
}

}  // namespace strata::bench
