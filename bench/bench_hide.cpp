#include "bench/bench_hide.h"

#include <cstdio>
#include <map>
#include <utility>
#include <vector>

#include "core/error.h"

namespace strata::bench {
namespace {

using nlohmann::json;

const std::vector<OptimizerConfig> kEncodings = {
    {},
    {.master = MasterEncoding::Remainder},
    {.moments = MomentEncoding::Bf16},
    {.moments = MomentEncoding::Block8},
    {.master = MasterEncoding::Remainder, .moments = MomentEncoding::Bf16},
    {.master = MasterEncoding::Remainder, .moments = MomentEncoding::Block8},
};
const std::vector<std::pair<StatesAt, WeightsAt>> kHomes = {{StatesAt::Ram, WeightsAt::Ram},
                                                            {StatesAt::Ram, WeightsAt::Nvme},
                                                            {StatesAt::Nvme, WeightsAt::Ram},
                                                            {StatesAt::Nvme, WeightsAt::Nvme}};
const std::vector<std::pair<Site, const char*>> kSites = {
    {Site::Cpu, "cpu"}, {Site::Streamed, "streamed"}, {Site::Resident, "resident"}};

void check(const HideBenchOptions& options) {
  const Machine& m = options.machine;
  for (const auto& [name, value] : std::map<std::string, double>{{"flops", m.flops},
                                                                 {"dram", m.dram},
                                                                 {"link", m.link},
                                                                 {"drive-read", m.drive_read},
                                                                 {"drive-write", m.drive_write},
                                                                 {"gpu-bytes", m.gpu_bytes},
                                                                 {"ram-bytes", m.ram_bytes},
                                                                 {"parameters", options.model.parameters}}) {
    if (!(value > 0)) throw ConfigError("bench hide: " + name + " must be positive");
  }
}

json row_of(const HideBenchOptions& options, const Arrangement& arrangement, const char* site) {
  json row{{"states_bytes", state_bytes_per_element(arrangement.optimizer, DType::BF16)},
           {"master", name_of(arrangement.optimizer.master)},
           {"moments", name_of(arrangement.optimizer.moments)},
           {"states", arrangement.states == StatesAt::Ram ? "ram" : "nvme"},
           {"weights", arrangement.weights == WeightsAt::Ram ? "ram" : "nvme"},
           {"site", site},
           {"clipping", arrangement.clipping == Clipping::Exact},
           {"ram_needed", ram_needed(options.machine, options.model, arrangement)}};
  const std::optional<Forecast> found = forecast(options.machine, options.model, arrangement);
  row["fits"] = found.has_value();
  if (!found) return row;
  const std::uint64_t tokens = tokens_that_hide(options.machine, options.model, arrangement, *found);
  const auto below = static_cast<double>(tokens - 1);
  const std::array<Phase, 2> both = phases(options.machine, options.model, arrangement, *found, below);
  row["tokens"] = tokens;
  row["step_seconds"] = step_seconds(options.machine, options.model, arrangement, *found, static_cast<double>(tokens));
  row["cached"] = found->cached;
  row["resident"] = found->resident;
  row["update_seconds"] = found->update_seconds;
  row["forward_bound"] = both[0].binding;
  row["backward_bound"] = both[1].binding;
  return row;
}

std::string cell(const json& row) {
  if (!row.at("fits").get<bool>()) return "does not fit";
  char text[64];
  std::snprintf(text, sizeof text, "%.1fK", static_cast<double>(row.at("tokens").get<std::uint64_t>()) / 1000);
  return text;
}

}  // namespace

json run_hide_bench(const HideBenchOptions& options) {
  check(options);
  json rows = json::array();
  for (const OptimizerConfig& optimizer : kEncodings) {
    for (const auto& [states, weights] : kHomes) {
      for (const Clipping clipping : {Clipping::Exact, Clipping::None}) {
        for (const auto& [site, name] : kSites) {
          rows.push_back(row_of(options, {optimizer, states, weights, site, clipping, options.recompute}, name));
        }
      }
    }
  }
  const Machine& m = options.machine;
  return {{"forecast", true},
          {"machine",
           {{"flops", m.flops},
            {"dram", m.dram},
            {"link", m.link},
            {"drive_read", m.drive_read},
            {"drive_write", m.drive_write},
            {"half_duplex", m.half_duplex},
            {"gpu_bytes", m.gpu_bytes},
            {"ram_bytes", m.ram_bytes},
            {"gpu_reserve", m.gpu_reserve},
            {"ram_reserve", m.ram_reserve}}},
          {"parameters", options.model.parameters},
          {"recompute", options.recompute},
          {"rows", rows}};
}

std::string format_hide_bench(const json& result) {
  const json& m = result.at("machine");
  char head[512];
  std::snprintf(head, sizeof head,
                "Forecast, not a measurement: tokens a step from which it takes at most 1.1 times its computing.\n"
                "%.2fe9 parameters, %s recomputation; %.0f TFLOP/s, memory %.0f GB/s, link %.0f GB/s each way, drive "
                "%.1f/%.1f GB/s %s duplex, %.0f GB of device memory, %.0f GB of RAM.\n\n",
                result.at("parameters").get<double>() / 1e9, result.at("recompute").get<bool>() ? "with" : "without",
                m.at("flops").get<double>() / 1e12, m.at("dram").get<double>() / 1e9, m.at("link").get<double>() / 1e9,
                m.at("drive_read").get<double>() / 1e9, m.at("drive_write").get<double>() / 1e9,
                m.at("half_duplex").get<bool>() ? "half" : "full", m.at("gpu_bytes").get<double>() / 1e9,
                m.at("ram_bytes").get<double>() / 1e9);
  std::string text = head;
  text +=
      "| s | states | weights | CPU, clipped | streamed, clipped | resident, clipped | CPU | streamed | resident |\n"
      "|---|---|---|---|---|---|---|---|---|\n";
  const json& rows = result.at("rows");
  const std::size_t columns = 2 * kSites.size();
  for (std::size_t first = 0; first < rows.size(); first += columns) {
    char start[64];
    std::snprintf(start, sizeof start, "| %.4g | %s | %s |", rows[first].at("states_bytes").get<double>(),
                  rows[first].at("states").get<std::string>().c_str(),
                  rows[first].at("weights").get<std::string>().c_str());
    text += start;
    for (std::size_t c = 0; c < columns; ++c) text.append(" ").append(cell(rows[first + c])).append(" |");
    text += "\n";
  }
  return text;
}

}  // namespace strata::bench
