#include "bench/bench_adam.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iomanip>
#include <map>
#include <sstream>
#include <vector>

#include "bench/memory_ceiling.h"
#include "bench/statistics.h"
#include "core/buffer.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/parallel.h"
#include "cpu_adam/cpu_optimizer.h"

namespace strata::bench {
namespace {

using cpu_adam::CpuOptimizer;
using cpu_adam::Isa;

constexpr std::size_t kGrain = 65536;
constexpr std::size_t kScalarRounds = 2;

// The five arrays of a bf16 shard, on huge pages where the kernel gives them, touched by the threads that use them.
class Arrays {
 public:
  Arrays(std::size_t numel, Parallel& parallel) : budget_("bench", 16 * numel + 5 * kPageBytes) {
    for (const DType dtype : {DType::BF16, DType::BF16, DType::F32, DType::F32, DType::F32}) {
      buffers_.push_back(allocate_host(budget_, numel * bytes_of(dtype), MemoryTag::OptimState));
      spans_.push_back({buffers_.back().data(), dtype, numel});
    }
    segments_ = {{.name = "all", .shape = {}, .offset = 0, .numel = numel, .decay = true}};
    refill(parallel);
  }

  // Ordinary values, so that no measurement runs on subnormals. The ceiling loops leave other values behind.
  void refill(Parallel& parallel) {
    parallel.parallel_for(spans_[0].numel, kGrain, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) {
        const float value = 1e-3f * static_cast<float>(1 + i % 977);
        spans_[0].as<std::uint16_t>()[i] = 0;
        spans_[1].as<std::uint16_t>()[i] = static_cast<std::uint16_t>(0x3c00 + i % 509);
        spans_[2].as<float>()[i] = value;
        spans_[3].as<float>()[i] = 0.1f * value;
        spans_[4].as<float>()[i] = value * value;
      }
    });
  }

  ShardViews views() const { return {spans_[0], spans_[1], std::span(spans_).last(3), segments_}; }
  AdamStreams streams() const {
    return {spans_[0].as<std::uint16_t>(), spans_[1].as<std::uint16_t>(), spans_[2].as<float>(), spans_[3].as<float>(),
            spans_[4].as<float>()};
  }

 private:
  Budget budget_;
  std::vector<Buffer> buffers_;
  std::vector<TensorSpan> spans_;
  std::vector<Segment> segments_;
};

nlohmann::json summary(const std::vector<double>& values) {
  return {{"median", median(values)}, {"mad", mad(values)}, {"worst", *std::min_element(values.begin(), values.end())}};
}

double parameters_per_microsecond(std::size_t numel, const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - start;
  return static_cast<double>(numel) / elapsed.count();
}

// Rates in M parameters/s by name, one value per round.
struct Samples {
  std::vector<double> fused, scalar, ceiling, ratio;
  std::map<std::string, std::vector<double>> loops;
};

void run_round(std::size_t round, Arrays& arrays, std::size_t numel, Parallel& parallel, Samples& samples) {
  const StepContext context = {.step = 10, .learning_rate = 1e-4, .weight_decay = 0.01, .grad_scale = 0.5f};
  CpuOptimizer fused(parallel), scalar(parallel, {}, Isa::Scalar);
  double ceiling = 0;
  for (const CeilingLoop& loop : ceiling_loops()) {
    const AdamStreams streams = arrays.streams();
    const double rate = parameters_per_microsecond(numel, [&] {
      parallel.parallel_for(numel, kGrain, [&](std::size_t begin, std::size_t end) { loop.run(streams, begin, end); });
    });
    samples.loops[std::string(loop.name)].push_back(rate);
    ceiling = std::max(ceiling, rate);
  }
  arrays.refill(parallel);
  samples.ceiling.push_back(ceiling);
  samples.fused.push_back(parameters_per_microsecond(numel, [&] { fused.step(context, arrays.views()).wait(); }));
  samples.ratio.push_back(samples.fused.back() / ceiling);
  if (round < kScalarRounds) {
    samples.scalar.push_back(parameters_per_microsecond(numel, [&] { scalar.step(context, arrays.views()).wait(); }));
  }
}

}  // namespace

nlohmann::json run_adam_bench(const AdamBenchOptions& options) {
  if (options.numel == 0 || options.rounds == 0)
    throw ConfigError("bench adam needs at least one element and one round");
  // Whole vectors of every width, so that the ceiling loops need no tail.
  const std::size_t numel = align_up(options.numel, 64);
  const auto parallel = make_thread_pool(options.threads);
  Arrays arrays(numel, *parallel);
  Samples warm_up, samples;
  run_round(kScalarRounds, arrays, numel, *parallel, warm_up);
  for (std::size_t round = 0; round < options.rounds; ++round) run_round(round, arrays, numel, *parallel, samples);

  nlohmann::json loops;
  for (const auto& [name, values] : samples.loops) loops[name] = summary(values);
  return {{"unit", "M parameters/s"},
          {"numel", numel},
          {"threads", parallel->threads()},
          {"rounds", options.rounds},
          {"isa", cpu_adam::name_of(CpuOptimizer(*parallel).isa())},
          {"bytes_per_parameter", 28},
          {"fused", summary(samples.fused)},
          {"scalar", summary(samples.scalar)},
          {"ceiling", summary(samples.ceiling)},
          {"ceiling_loops", loops},
          {"fused_over_ceiling", summary(samples.ratio)}};
}

std::string format_adam_bench(const nlohmann::json& result) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(0);
  const auto row = [&](const std::string& name, const nlohmann::json& value) {
    out << "  " << std::left << std::setw(26) << name << std::right << std::setw(8) << value["median"].get<double>()
        << " +- " << value["mad"].get<double>() << "\n";
  };
  out << "Adam, " << result["numel"].get<std::size_t>() << " parameters, " << result["threads"].get<std::size_t>()
      << " threads, median of " << result["rounds"].get<std::size_t>() << " rounds, M parameters/s\n";
  row("fused (" + result["isa"].get<std::string>() + ")", result["fused"]);
  row("scalar", result["scalar"]);
  row("memory ceiling", result["ceiling"]);
  for (const auto& [name, value] : result["ceiling_loops"].items()) row("  " + name, value);
  const nlohmann::json& ratio = result["fused_over_ceiling"];
  out << std::setprecision(3) << "  fused / ceiling, paired " << std::setw(10) << ratio["median"].get<double>()
      << " +- " << ratio["mad"].get<double>() << ", worst round " << ratio["worst"].get<double>() << "\n";
  return out.str();
}

}  // namespace strata::bench
