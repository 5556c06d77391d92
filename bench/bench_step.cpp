#include "bench/bench_step.h"

#include <algorithm>
#include <array>
#include <iomanip>
#include <sstream>
#include <vector>

#include "bench/span_overlap.h"
#include "bench/step_model.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/statistics.h"
#include "engine/engine.h"
#include "engine/ideal.h"
#include "nvme/drive_probe.h"

namespace strata::bench {
namespace {

using engine::Engine;
using engine::EngineConfig;
using engine::StepSummary;
using nlohmann::json;

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

// What the drive does while nothing else runs, with the settings that the engine will use.
engine::DriveRates calibrate(const std::filesystem::path& dir) {
  nvme::DriveProbe probe({.directory = dir, .bytes = std::uint64_t{512} << 20, .sustained_bytes = 0});
  const nvme::DeviceProfile profile = nvme::load_profile(dir).value_or(nvme::DeviceProfile{});
  std::array<std::vector<double>, 3> rates;
  constexpr std::array kPatterns{nvme::Pattern::Read, nvme::Pattern::Write, nvme::Pattern::Mixed};
  for (int round = 0; round < 5; ++round) {
    for (std::size_t i = 0; i < kPatterns.size(); ++i) {
      nvme::Trial trial;
      trial.pattern = kPatterns[i];
      trial.block_bytes = profile.block_bytes;
      trial.depth = profile.queue_depth;
      trial.ring = profile.ring;
      trial.burst_bytes = profile.burst_bytes;
      trial.seconds = 0.25;
      rates[i].push_back(probe.measure(trial).rate);
    }
  }
  return {median(rates[0]), median(rates[1]), median(rates[2])};
}

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

// t* of a step: the larger of what the processor and what the drive need alone. On the host device layers and updates
// share the cores.
engine::ResourceTime ideal_of(const StepSummary& memory, const StepSummary& nvme, const engine::DriveRates& rates) {
  const std::array<engine::ResourceTime, 2> resources{
      engine::ResourceTime{"compute", memory.forward_seconds + memory.backward_seconds + memory.optimizer_seconds},
      engine::ResourceTime{"nvme", engine::drive_seconds(nvme.nvme_read, nvme.nvme_written, rates)}};
  return engine::binding_resource(resources);
}

// The least for these bytes while the update waits for the norm, which is known when backward ends: backward with its
// reads, then forward and the update with theirs, and the first layer's update, which nothing can hide
// (exact clipping, without guessing the norm, and without memory to read states into while backward runs).
double optimum_of(const StepSummary& memory, const StepSummary& nvme, const engine::DriveRates& rates,
                  std::uint64_t state_bytes, std::int64_t layers) {
  const std::uint64_t states = std::min(nvme.nvme_read, state_bytes);
  const std::uint64_t weights = (nvme.nvme_read - states) / 2;  // once in forward, once in backward
  const double backward = std::max(memory.backward_seconds, engine::drive_seconds(weights, 0, rates));
  const double update_drive = engine::drive_seconds(states, nvme.nvme_written, rates);
  const double rest = std::max(memory.forward_seconds + memory.optimizer_seconds,
                               engine::drive_seconds(states + weights, nvme.nvme_written, rates));
  return backward + rest + std::max(memory.optimizer_seconds, update_drive) / static_cast<double>(layers + 2);
}

}  // namespace

json run_step_bench(const StepBenchOptions& options) {
  if (options.rounds < 2) throw ConfigError("bench step needs at least 2 rounds");
  const ModelFolder folder(options);
  const std::unique_ptr<Engine> memory = Engine::create(memory_config(options, folder.path()));
  Trace trace;
  EngineConfig drive_config = nvme_config(options, folder.path());
  drive_config.trace = &trace;
  const engine::DriveRates rates = calibrate(options.dir);
  const std::unique_ptr<Engine> nvme = Engine::create(drive_config);
  const data::Batch batch = batch_of(options);
  std::vector<StepSummary> in_memory, on_nvme;
  std::vector<double> ratios, exposed, ideals, to_ideal, optima, to_optimum;
  std::string binding;
  std::uint64_t state_bytes = 0;
  for (const engine::PlanRow& row : nvme->memory_plan().rows) {
    if (row.what == "optimizer states") state_bytes += row.bytes[1] + row.bytes[2];
  }
  bool bits_equal = true;
  for (std::int64_t round = 0; round <= options.rounds; ++round) {
    StepSummary a, b;
    if (round % 2 == 0) {
      a = settled_step(*memory, batch);
      b = settled_step(*nvme, batch);
    } else {
      b = settled_step(*nvme, batch);
      a = settled_step(*memory, batch);
    }
    bits_equal = bits_equal && a.loss == b.loss && a.grad_norm == b.grad_norm;
    if (round == 0) continue;
    in_memory.push_back(a);
    on_nvme.push_back(b);
    ratios.push_back(b.seconds / a.seconds);
    exposed.push_back(b.seconds - a.forward_seconds - a.backward_seconds);
    const engine::ResourceTime ideal = ideal_of(a, b, rates);
    ideals.push_back(ideal.seconds);
    to_ideal.push_back(b.seconds / ideal.seconds);
    binding = ideal.name;
    optima.push_back(optimum_of(a, b, rates, state_bytes, options.layers));
    to_optimum.push_back(b.seconds / optima.back());
  }
  if (!options.trace.empty()) trace.write(options.trace);
  return {{"parameters", memory->parameters()},
          {"tokens", options.tokens},
          {"rounds", options.rounds},
          {"description", nvme->description()},
          {"memory", summary_of(in_memory)},
          {"nvme", summary_of(on_nvme)},
          {"ratio", median(ratios)},
          {"ratio_mad", mad(ratios)},
          {"exposed_seconds", median(exposed)},
          {"drive_rates", {{"read", rates.read}, {"write", rates.write}, {"mixed", rates.mixed}}},
          {"ideal_seconds", median(ideals)},
          {"binding_link", binding},
          {"ratio_to_ideal", median(to_ideal)},
          {"ratio_to_ideal_mad", mad(to_ideal)},
          {"optimum_seconds", median(optima)},
          {"ratio_to_optimum", median(to_optimum)},
          {"ratio_to_optimum_mad", mad(to_optimum)},
          {"in_flight_during_compute", overlap_of(trace)},
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
      << " s\n"
      << "t*: " << result["ideal_seconds"].get<double>() << " s, bound by " << result["binding_link"].get<std::string>()
      << " (drive alone: read " << std::setprecision(2) << result["drive_rates"]["read"].get<double>() * 1e-9
      << ", write " << result["drive_rates"]["write"].get<double>() * 1e-9 << ", mixed "
      << result["drive_rates"]["mixed"].get<double>() * 1e-9 << " GB/s); step on NVMe / t*: " << std::setprecision(3)
      << result["ratio_to_ideal"].get<double>() << " (MAD " << result["ratio_to_ideal_mad"].get<double>() << ")\n"
      << "with the update after the norm: at least " << result["optimum_seconds"].get<double>()
      << " s; step on NVMe / that: " << result["ratio_to_optimum"].get<double>() << " (MAD "
      << result["ratio_to_optimum_mad"].get<double>() << ")\n"
      << "of the time with requests in flight, a layer was computed during: reads " << std::setprecision(0)
      << 100 * result["in_flight_during_compute"]["read"].get<double>() << " %, writes "
      << 100 * result["in_flight_during_compute"]["write"].get<double>()
      << " %; same losses and norms: " << (result["bits_equal"].get<bool>() ? "yes" : "NO") << "\n";
  return out.str();
}

}  // namespace strata::bench
