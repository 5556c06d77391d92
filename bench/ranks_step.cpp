#include "bench/ranks_step.h"

#include <algorithm>
#include <array>
#include <iomanip>
#include <memory>
#include <sstream>
#include <vector>

#include "bench/process_memory.h"
#include "bench/published_bytes.h"
#include "bench/step_model.h"
#include "bench/step_summary.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/statistics.h"
#include "engine/parts.h"

namespace strata::bench {
namespace {

using engine::Engine;
using engine::EngineConfig;
using engine::PerTier;
using engine::StepSummary;
using nlohmann::json;

json to_json(const PerTier& bytes) {
  return {{"device", bytes[0]}, {"host", bytes[1]}, {"nvme", bytes[2]}};
}
json to_json(const engine::SentBytes& sent) {
  return {{"all", sent.all}, {"node", sent.node}, {"across", sent.across}};
}

// [rank][value]: every rank gives as many.
template <std::size_t n>
std::vector<std::array<double, n>> of_all_ranks(Communicator& comm, const std::array<double, n>& mine) {
  std::vector<double> flat(comm.world() * n);
  std::copy(mine.begin(), mine.end(), flat.begin() + static_cast<std::ptrdiff_t>(comm.rank() * n));
  comm.all_gather_values(flat);
  std::vector<std::array<double, n>> all(comm.world());
  for (std::size_t i = 0; i < flat.size(); ++i) all[i / n][i % n] = flat[i];
  return all;
}

// Nothing is divided, so every rank would hold all states of an optimizer: there are none.
EngineConfig computing_alone(const Engine& engine) {
  EngineConfig config = compute_config_of(engine);
  const bool coded = config.param_type == DType::BF16;
  config.optimizer = {.kind = OptimizerKind::Sgd, .master = coded ? MasterEncoding::Remainder : MasterEncoding::Fp32};
  return config;
}

// Padding included.
std::uint64_t elements_of(EngineConfig config) {
  config.compute = engine::Compute::ParamType;  // nothing to probe
  config.update_site = engine::UpdateSite::Host;
  const engine::ModelParts parts = engine::make_model_parts(config);
  std::uint64_t elements = 0;
  for (const zero::FlatLayout& layout : parts.compute->layouts()) elements += layout.numel();
  return elements;
}

std::uint64_t planned_states(const engine::MemoryPlan& plan) {
  std::uint64_t bytes = 0;
  for (const engine::PlanRow& row : plan.rows) {
    if (row.what != "parameters" && row.what != "gradients" && row.what != "optimizer states") continue;
    bytes += row.bytes[0] + row.bytes[1] + row.bytes[2];
  }
  return bytes;
}

json published_of(const Engine& engine, std::uint64_t elements) {
  const EngineConfig& config = engine.config();
  const engine::MemoryPlan& plan = engine.memory_plan();
  const engine::RankShape shape = engine::rank_shape(config);
  const ZeroSetting setting{config.zero_stage, shape.shards(), elements,
                            static_cast<std::uint64_t>(config.micro_batches), plan.accumulation};
  const auto weight = static_cast<double>(bytes_of(config.param_type));
  const auto gradient = static_cast<double>(bytes_of(plan.grad_type));
  const double states = state_bytes_per_element(config.optimizer, config.param_type);
  json result{{"states_bytes", published_held_bytes(setting, weight, gradient, states)}, {"sent_bytes", nullptr}};
  const engine::SlowLinks& links = shape.links;
  const bool plain = !links.weights && !links.gradients && !links.two_hops && !links.node_partition;
  if (plain && !shape.within_node) result["sent_bytes"] = published_sent_bytes(setting, weight, gradient);
  return result;
}

// Of one step and this rank.
struct Traffic {
  engine::SentBytes sent;
  double collective_seconds = 0;
};

double collective_seconds(const EngineConfig& config) {
  double seconds = 0;
  for (const auto& comm : {config.comm, config.node_comm, config.across_comm}) {
    seconds += comm ? comm->stats().busy_seconds : 0;
  }
  return seconds;
}

json per_rank(Engine& engine, const Traffic& traffic, std::uint64_t peak) {
  const PerTier held = engine.peak_bytes();
  const auto number = [](std::uint64_t value) { return static_cast<double>(value); };
  const std::array<double, 9> mine{number(traffic.sent.all),
                                   number(traffic.sent.node),
                                   number(traffic.sent.across),
                                   traffic.collective_seconds,
                                   number(peak),
                                   number(held[0]),
                                   number(held[1]),
                                   number(held[2]),
                                   number(planned_states(engine.memory_plan()))};
  json rows = json::array();
  for (const std::array<double, 9>& rank : of_all_ranks(engine.communicator(), mine)) {
    const auto bytes = [&rank](std::size_t i) { return static_cast<std::uint64_t>(rank[i]); };
    rows.push_back({{"held", to_json(PerTier{bytes(5), bytes(6), bytes(7)})},
                    {"states_bytes", bytes(8)},
                    {"sent", to_json(engine::SentBytes{bytes(0), bytes(1), bytes(2)})},
                    {"collective_seconds", rank[3]},
                    {"peak_rss_bytes", bytes(4)}});
  }
  return rows;
}

// Per round, of the slowest rank.
struct Rounds {
  std::vector<StepSummary> steps;  // of this rank
  std::vector<double> total, compute, exposed, ratios, collective;
  Traffic last;
};

Rounds take_rounds(Engine& engine, Engine& alone, const std::vector<data::Batch>& batches, std::int64_t rounds) {
  Communicator& comm = engine.communicator();
  Rounds all;
  StepSummary a, b;
  const auto compute = [&] {
    comm.barrier();
    a = settled_step(alone, batches);
  };
  for (std::int64_t round = 0; round < rounds; ++round) {
    if (round % 2 == 0) compute();
    comm.barrier();
    const engine::SentBytes sent = engine.sent();
    const double busy = collective_seconds(engine.config());
    b = settled_step(engine, batches);
    const engine::SentBytes now = engine.sent();
    all.last = {{(now.all - sent.all) / kStepsUntilSettled, (now.node - sent.node) / kStepsUntilSettled,
                 (now.across - sent.across) / kStepsUntilSettled},
                (collective_seconds(engine.config()) - busy) / kStepsUntilSettled};
    if (round % 2 == 1) compute();
    std::array<double, 3> slowest{};
    for (const auto& rank : of_all_ranks(
             comm, std::array{b.seconds, a.forward_seconds + a.backward_seconds, all.last.collective_seconds})) {
      for (std::size_t i = 0; i < rank.size(); ++i) slowest[i] = std::max(slowest[i], rank[i]);
    }
    all.steps.push_back(b);
    all.total.push_back(slowest[0]);
    all.compute.push_back(slowest[1]);
    all.exposed.push_back(slowest[0] - slowest[1]);
    all.ratios.push_back(slowest[0] / slowest[1]);
    all.collective.push_back(slowest[2]);
  }
  return all;
}

json measure(Engine& engine, const EngineConfig& config, const StepMeasuring& measuring) {
  const std::vector<data::Batch> batches = batches_of(config, engine.model_config().vocab_size);
  (void)settled_step(engine, batches);
  const std::uint64_t peak = peak_resident_bytes();
  const std::unique_ptr<Engine> alone = engine_beside(computing_alone(engine));
  (void)settled_step(*alone, batches);
  const Rounds rounds = take_rounds(engine, *alone, batches, measuring.rounds);
  const engine::MemoryPlan& plan = engine.memory_plan();
  const std::uint64_t elements = elements_of(engine.config());
  json result{
      {"ranks", engine.communicator().world()},
      {"zero_stage", config.zero_stage},
      {"micro_batches", config.micro_batches},
      {"accumulation", plan.accumulation == zero::Accumulation::Vertical ? "vertical" : "horizontal"},
      {"held_layers", plan.held_layers},
      {"parameters", engine.parameters()},
      {"elements", elements},
      {"tokens", static_cast<std::uint64_t>(tokens_of(config)) * engine.communicator().world()},
      {"rounds", measuring.rounds},
      {"description", engine.description()},
      {"recomputed_layers", *alone->config().recomputed_layers},
      {"total_seconds", median(rounds.total)},
      {"total_mad", mad(rounds.total)},
      {"compute_seconds", median(rounds.compute)},
      {"exposed_seconds", median(rounds.exposed)},
      {"exposed_mad", mad(rounds.exposed)},
      {"ratio_to_compute", median(rounds.ratios)},
      {"ratio_to_compute_mad", mad(rounds.ratios)},
      {"collective_seconds", median(rounds.collective)},
      {"step", summary_of(rounds.steps)},
      {"per_rank", per_rank(engine, rounds.last, peak)},
      {"planned", {{"held", to_json(plan.need)}, {"sent", to_json(plan.sent_per_step)}}},
      {"published", published_of(engine, elements)},
      {"peak_rss_bytes", 0},
  };
  for (const json& rank : result["per_rank"]) {
    result["peak_rss_bytes"] = std::max(result["peak_rss_bytes"].get<std::uint64_t>(),  //
                                        rank["peak_rss_bytes"].get<std::uint64_t>());
  }
  return result;
}

std::uint64_t total_of(const json& sent) {
  return sent["all"].get<std::uint64_t>() + sent["node"].get<std::uint64_t>() + sent["across"].get<std::uint64_t>();
}

}  // namespace

json measure_ranks_step(const EngineConfig& asked, const StepMeasuring& measuring) {
  if (measuring.hide) throw ConfigError("bench step --hide looks for T_hide of one rank: leave out --hide or --nproc");
  EngineConfig config = asked;
  Trace trace;
  config.trace = &trace;
  forget_peak_resident_bytes();
  const std::unique_ptr<Engine> engine = Engine::create(config);
  json result;
  measuring.guard([&] {
    result = measure(*engine, config, measuring);
    return 0;
  });
  if (!measuring.trace.empty()) trace.write(measuring.trace);
  return result;
}

std::string format_ranks_step(const json& result) {
  const auto number = [&result](const char* key) { return result[key].get<double>(); };
  std::ostringstream out;
  out << std::fixed << std::setprecision(3) << result["parameters"] << " parameters (" << result["elements"]
      << " elements with padding), " << result["ranks"] << " ranks, ZeRO stage " << result["zero_stage"] << ", "
      << result["tokens"] << " tokens a step in " << result["micro_batches"] << " micro-batches each ("
      << result["accumulation"].get<std::string>() << "), " << result["rounds"] << " rounds; "
      << result["description"].get<std::string>() << "; " << result["recomputed_layers"] << " layers recomputed, "
      << result["held_layers"] << " stay gathered\n"
      << "total " << number("total_seconds") << " s (MAD " << number("total_mad") << "), compute alone "
      << number("compute_seconds") << " s, exposed " << number("exposed_seconds") << " s (MAD " << number("exposed_mad")
      << "); step / compute " << number("ratio_to_compute") << " (MAD " << number("ratio_to_compute_mad")
      << "); collectives ran for " << number("collective_seconds") << " s\n"
      << "rank      device        host        nvme      states   sent a step      peak RSS\n";
  const auto bytes = [](const json& value) { return format_bytes(value.get<std::uint64_t>()); };
  const auto row = [&](const std::string& name, const json& held, const std::string& states, const std::string& sent,
                       const std::string& peak) {
    out << std::left << std::setw(10) << name << std::right;
    for (const char* tier : {"device", "host", "nvme"}) {
      out << std::setw(tier == std::string("device") ? 6 : 12) << (held.is_null() ? "-" : bytes(held[tier]));
    }
    out << std::setw(12) << states << std::setw(14) << sent << std::setw(14) << peak << "\n";
  };
  for (std::size_t r = 0; r < result["per_rank"].size(); ++r) {
    const json& rank = result["per_rank"][r];
    row(std::to_string(r), rank["held"], bytes(rank["states_bytes"]), format_bytes(total_of(rank["sent"])),
        bytes(rank["peak_rss_bytes"]));
  }
  row("planned", result["planned"]["held"], bytes(result["per_rank"][0]["states_bytes"]),
      format_bytes(total_of(result["planned"]["sent"])), "-");
  const json& published = result["published"];
  const auto rounded = [](const json& value) { return format_bytes(static_cast<std::uint64_t>(value.get<double>())); };
  row("published", nullptr, rounded(published["states_bytes"]),
      published["sent_bytes"].is_null() ? "-" : rounded(published["sent_bytes"]), "-");
  const json& sent = result["per_rank"][0]["sent"];
  out << "counted of rank 0 in bytes: " << sent["all"] << " to all ranks, " << sent["node"] << " inside the node, "
      << sent["across"] << " between nodes\n";
  return out.str();
}

}  // namespace strata::bench
