#include "bench/bench_adam.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <iomanip>
#include <map>
#include <sstream>

#include "bench/memory_ceiling.h"
#include "bench/ordinary_values.h"
#include "bench/summary.h"
#include "core/buffer.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/parallel.h"
#include "core/statistics.h"
#include "cpu_adam/cpu_optimizer.h"

namespace strata::bench {
namespace {

using cpu_adam::CpuOptimizer;

constexpr std::size_t kGrain = 65536;
constexpr std::size_t kSlices = 16;
constexpr std::size_t kTriadNumel = std::size_t{1} << 26;

struct Layout {
  std::string name;
  OptimizerConfig config;
  StreamLayout streams;
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {"fp32", {}, {true, 3, 0, 0}},
      {"remainder", {.master = MasterEncoding::Remainder}, {false, 2, 2, 0}},
      {"bf16", {.moments = MomentEncoding::Bf16}, {true, 1, 2, 0}},
      {"8bit", {.moments = MomentEncoding::Block8}, {true, 1, 0, 2}},
      {"remainder+bf16", {.master = MasterEncoding::Remainder, .moments = MomentEncoding::Bf16}, {false, 0, 4, 0}},
      {"remainder+8bit", {.master = MasterEncoding::Remainder, .moments = MomentEncoding::Block8}, {false, 0, 2, 2}}};
  return all;
}

const Layout& layout_named(const std::string& name) {
  for (const Layout& layout : layouts()) {
    if (layout.name == name) return layout;
  }
  std::string names;
  for (const Layout& layout : layouts()) names += (names.empty() ? "" : ", ") + layout.name;
  throw ConfigError("unknown states \"" + name + "\"; there are " + names);
}

// The arrays of a bf16 shard, side by side in one buffer on huge pages, which every layout reuses.
class Arrays {
 public:
  Arrays(std::size_t numel, Parallel& parallel)
      : numel_(numel),
        budget_("bench", 17 * numel + 16 * kPageBytes),
        buffer_(allocate_host(budget_, 16 * numel + 8 * kPageBytes, MemoryTag::OptimState)),
        parallel_(parallel) {}

  // Takes the arrays of a layout from the buffer and fills them with ordinary values, so that no measurement runs on
  // subnormals. The threads that use an array are the first to touch it.
  void take(const Layout& layout) {
    std::size_t offset = 0;
    const auto array = [&](DType dtype, std::size_t values) {
      const TensorSpan span = {buffer_.data() + offset, dtype, values};
      offset = align_up(offset + span.bytes(), kPageBytes);
      return span;
    };
    specs_ = state_specs(layout.config, DType::BF16);
    param_ = array(DType::BF16, numel_);
    grad_ = array(DType::BF16, numel_);
    states_.clear();
    for (const StateSpec& spec : specs_) states_.push_back(array(spec.dtype, spec.values_for(numel_)));
    parallel_.parallel_for(numel_, kGrain, [&](std::size_t begin, std::size_t end) { fill(begin, end); });
  }

  ShardViews views(std::size_t first, std::size_t numel, std::span<const Segment> segments,
                   std::vector<TensorSpan>& states) const {
    states.clear();
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      states.push_back(states_[i].subspan(first / specs_[i].elements_per_value, specs_[i].values_for(numel)));
    }
    return {param_.subspan(first, numel), grad_.subspan(first, numel), states, segments, first};
  }

  Streams streams(const StreamLayout& layout) const {
    Streams streams;
    streams.grad = grad_.as<std::uint8_t>();
    std::size_t fours = 0, twos = 0, ones = 0;
    if (layout.writes_param) {
      streams.param = param_.as<std::uint8_t>();
    } else {
      streams.twos[twos++] = param_.as<std::uint8_t>();
    }
    for (std::size_t i = 0; i < states_.size(); ++i) {
      if (specs_[i].elements_per_value != 1) continue;  // scales: a 64th of a byte per element
      const std::size_t bytes = bytes_of(specs_[i].dtype);
      auto* data = states_[i].as<std::uint8_t>();
      (bytes == 4 ? streams.fours[fours++] : bytes == 2 ? streams.twos[twos++] : streams.ones[ones++]) = data;
    }
    return streams;
  }

 private:
  void fill(std::size_t begin, std::size_t end) {
    fill_bf16(param_, kParamPeriod, begin, end);
    fill_bf16(grad_, kGradPeriod, begin, end);
    for (std::size_t k = 0; k < states_.size(); ++k) {
      const std::size_t per_value = specs_[k].elements_per_value;
      fill_state(states_[k], begin / per_value, ceil_div(end, per_value));
    }
  }

  std::size_t numel_;
  Budget budget_;
  Buffer buffer_;
  Parallel& parallel_;
  std::vector<StateSpec> specs_;
  TensorSpan param_, grad_;
  std::vector<TensorSpan> states_;
};

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Rates in parameters per second, one value per round.
struct Samples {
  std::vector<double> fused, ceiling, ratio;
  std::map<std::string, std::vector<double>> loops;
};

// Works on elements [first, first + numel).
using SliceWork = std::function<void(std::size_t first, std::size_t numel)>;

// Every work visits every slice once; at any time the works are at slices far from each other. Returns their seconds.
std::vector<double> interleaved(const std::vector<SliceWork>& works, std::size_t numel) {
  const std::size_t slice = align_up(ceil_div(numel, kSlices), kGrain);
  const std::size_t slices = ceil_div(numel, slice);
  std::vector<double> seconds(works.size());
  for (std::size_t turn = 0; turn < slices; ++turn) {
    for (std::size_t k = 0; k < works.size(); ++k) {
      const std::size_t work = (turn + k) % works.size();
      const std::size_t first = (turn + work * slices / works.size()) % slices * slice;
      seconds[work] += seconds_of([&] { works[work](first, std::min(slice, numel - first)); });
    }
  }
  return seconds;
}

void run_round(const Layout& layout, Arrays& arrays, std::size_t numel, Parallel& parallel, Samples& samples) {
  const StepContext context = {.step = 10, .learning_rate = 1e-4, .weight_decay = 0.01, .grad_scale = 0.5f};
  CpuOptimizer fused(parallel, layout.config);
  arrays.take(layout);
  std::vector<TensorSpan> states;
  std::vector<SliceWork> works = {[&](std::size_t first, std::size_t count) {
    const std::array<Segment, 1> segments = {
        {{.name = "all", .shape = {}, .offset = 0, .numel = count, .decay = true}}};
    fused.step(context, arrays.views(first, count, segments, states)).wait();
  }};
  const Streams streams = arrays.streams(layout.streams);
  for (const CeilingLoop& loop : ceiling_loops(layout.streams)) {
    works.push_back([&parallel, &streams, loop](std::size_t first, std::size_t count) {
      parallel.parallel_for(count, kGrain,
                            [&](std::size_t begin, std::size_t end) { loop.run(streams, first + begin, first + end); });
    });
  }
  const std::vector<double> seconds = interleaved(works, numel);
  const auto rate = [&](std::size_t work) { return static_cast<double>(numel) / seconds[work]; };
  double ceiling = 0;
  for (std::size_t k = 1; k < works.size(); ++k) {
    samples.loops[std::string(ceiling_loops(layout.streams)[k - 1].name)].push_back(rate(k));
    ceiling = std::max(ceiling, rate(k));
  }
  samples.fused.push_back(rate(0));
  samples.ceiling.push_back(ceiling);
  samples.ratio.push_back(rate(0) / ceiling);
}

// Bytes per second of STREAM's triad on three arrays of its own.
class Triad {
 public:
  explicit Triad(std::size_t numel)
      : numel_(std::min(numel, kTriadNumel)), budget_("triad", 12 * numel_ + 3 * kPageBytes) {
    for (Buffer& array : arrays_) array = allocate_host(budget_, numel_ * sizeof(float), MemoryTag::OptimState);
  }
  double run(Parallel& parallel) {
    const auto at = [&](std::size_t k) { return reinterpret_cast<float*>(arrays_[k].data()); };
    const double seconds = seconds_of([&] {
      parallel.parallel_for(numel_, kGrain,
                            [&](std::size_t begin, std::size_t end) { stream_triad(at(0), at(1), at(2), begin, end); });
    });
    return 12 * static_cast<double>(numel_) / seconds;
  }

 private:
  std::size_t numel_;
  Budget budget_;
  std::array<Buffer, 3> arrays_;
};

nlohmann::json json_of(const Layout& layout, const Samples& samples) {
  nlohmann::json loops;
  for (const auto& [name, values] : samples.loops) loops[name] = summary(values);
  return {{"bytes_per_parameter", layout.streams.bytes_per_element()},
          {"state_bytes_per_parameter", state_bytes_per_element(layout.config, DType::BF16)},
          {"params_per_second", summary(samples.fused)},
          {"ceiling_params_per_second", summary(samples.ceiling)},
          {"fused_over_ceiling", summary(samples.ratio)},
          {"ceiling_loops", loops}};
}

}  // namespace

std::vector<std::string> adam_bench_states() {
  std::vector<std::string> names;
  for (const Layout& layout : layouts()) names.push_back(layout.name);
  return names;
}

OptimizerConfig optimizer_of_states(const std::string& name) {
  return layout_named(name).config;
}

void check_adam_bench(const AdamBenchOptions& options) {
  if (options.numel == 0 || options.rounds == 0 || options.states.empty())
    throw ConfigError("bench adam needs at least one element, one round and one kind of states");
}

nlohmann::json run_adam_bench(const AdamBenchOptions& options) {
  check_adam_bench(options);
  std::vector<Layout> chosen;
  for (const std::string& name : options.states) chosen.push_back(layout_named(name));
  // Whole vectors of every width and whole blocks of 8-bit states, so that the ceiling loops need no tail.
  const std::size_t numel = align_up(options.numel, 256);
  const auto parallel = make_thread_pool(options.threads);
  Arrays arrays(numel, *parallel);
  Triad triad(numel);
  std::vector<Samples> samples(chosen.size());
  std::vector<double> triads;
  std::vector<std::vector<double>> relative(chosen.size());
  for (std::size_t round = 0; round <= options.rounds; ++round) {
    for (std::size_t i = 0; i < chosen.size(); ++i) run_round(chosen[i], arrays, numel, *parallel, samples[i]);
    triads.push_back(triad.run(*parallel));
    if (round == 0) {  // warm-up
      samples.assign(chosen.size(), {});
      triads.clear();
      continue;
    }
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      relative[i].push_back(samples[i].fused.back() / samples[0].fused.back());
    }
  }

  nlohmann::json states;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    states[chosen[i].name] = json_of(chosen[i], samples[i]);
    states[chosen[i].name]["over_" + chosen[0].name] = summary(relative[i]);
  }
  return {{"numel", numel},
          {"threads", parallel->threads()},
          {"rounds", options.rounds},
          {"isa", cpu_adam::name_of(CpuOptimizer(*parallel).isa())},
          {"params_per_second", median(samples[0].fused)},
          {"ceiling_params_per_second", median(samples[0].ceiling)},
          {"fused_over_ceiling", summary(samples[0].ratio)},
          {"stream_triad_bytes_per_second", median(triads)},
          {"peers", nlohmann::json::object()},
          {"states", states}};
}

std::string format_adam_bench(const nlohmann::json& result) {
  std::ostringstream out;
  const auto million = [](const nlohmann::json& value) { return value["median"].get<double>() / 1e6; };
  out << "AdamW, bf16 gradient and parameter, " << result["numel"].get<std::size_t>() << " parameters, "
      << result["threads"].get<std::size_t>() << " threads, " << result["isa"].get<std::string>() << ", median of "
      << result["rounds"].get<std::size_t>() << " rounds, M parameters/s\n"
      << "  states           bytes     step  ceiling   step / ceiling (MAD, worst)   best loop\n";
  for (const auto& [name, row] : result["states"].items()) {
    std::string best;
    double best_rate = 0;
    for (const auto& [loop, rate] : row["ceiling_loops"].items()) {
      if (million(rate) <= best_rate) continue;
      best = loop;
      best_rate = million(rate);
    }
    const nlohmann::json& ratio = row["fused_over_ceiling"];
    out << std::fixed << "  " << std::left << std::setw(16) << name << std::right << std::setw(6)
        << row["bytes_per_parameter"].get<std::size_t>() << std::setprecision(0) << std::setw(9)
        << million(row["params_per_second"]) << std::setw(9) << million(row["ceiling_params_per_second"])
        << std::setprecision(3) << std::setw(13) << ratio["median"].get<double>() << " (" << ratio["mad"].get<double>()
        << ", " << ratio["worst"].get<double>() << ")      " << best << "\n";
  }
  out << std::setprecision(1) << "  STREAM triad " << result["stream_triad_bytes_per_second"].get<double>() / 1e9
      << " GB/s\n";
  return out.str();
}

}  // namespace strata::bench
