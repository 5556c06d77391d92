#include "bench/bench_cuda_adam.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <iomanip>
#include <sstream>

#include "bench/bench_device.h"
#include "bench/ordinary_values.h"
#include "bench/summary.h"
#include "core/bytes.h"
#include "core/error.h"

namespace strata::bench {
namespace {

constexpr double kBar = 0.90;
// Of one measurement: a step alone is over before a timer of the host can tell.
constexpr std::size_t kRepeats = 20;
constexpr std::size_t kFillBytes = std::size_t{8} << 20;

// Bytes that an update of one bf16 parameter reads and writes.
double bytes_per_parameter(const OptimizerConfig& config) {
  const double param = reads_param(config, DType::BF16) ? 4 : 2;
  return 2 + param + 2 * state_bytes_per_element(config, DType::BF16);
}

// The arrays of a bf16 shard in device memory, side by side in one buffer that every encoding uses again.
class DeviceArrays {
 public:
  DeviceArrays(cuda::Backend& backend, Stream& stream, std::size_t numel)
      : numel_(numel),
        stream_(stream),
        budget_("bench adam", align_up(kFillBytes, kPageBytes)),
        host_(allocate_host(budget_, kFillBytes, MemoryTag::Staging)),
        pinned_(backend.pin(host_.span())),
        buffer_(backend.device().allocate(bytes_for(numel), MemoryTag::OptimState)) {}

  static std::uint64_t bytes_for(std::size_t numel) { return 16 * numel + 8 * kPageBytes; }

  // Lays out the arrays of `config` and fills them.
  void take(const OptimizerConfig& config) {
    std::size_t offset = 0;
    const auto array = [&](DType dtype, std::size_t values) {
      const TensorSpan span = {buffer_.data() + offset, dtype, values};
      offset = align_up(offset + span.bytes(), kPageBytes);
      return span;
    };
    param_ = array(DType::BF16, numel_);
    grad_ = array(DType::BF16, numel_);
    states_.clear();
    fill(param_, [](const TensorSpan& part) { fill_bf16(part, kParamPeriod, 0, part.numel); });
    fill(grad_, [](const TensorSpan& part) { fill_bf16(part, kGradPeriod, 0, part.numel); });
    for (const StateSpec& spec : state_specs(config, DType::BF16)) {
      states_.push_back(array(spec.dtype, spec.values_for(numel_)));
      fill(states_.back(), [](const TensorSpan& part) { fill_state(part, 0, part.numel); });
    }
  }

  ShardViews views(std::span<const Segment> segments) const { return {param_, grad_, states_, segments}; }

  // Copies `bytes / 2` bytes, which reads and writes `bytes`. Requires: at most bytes().
  void copy(std::size_t bytes) const { stream_.copy(buffer_.data() + buffer_.bytes() / 2, buffer_.data(), bytes / 2); }
  std::size_t bytes() const { return buffer_.bytes(); }

 private:
  // The same few values again and again.
  void fill(const TensorSpan& array, const std::function<void(const TensorSpan&)>& ordinary) {
    const std::size_t most = kFillBytes / bytes_of(array.dtype);
    ordinary({host_.data(), array.dtype, std::min(most, array.numel)});
    for (std::size_t first = 0; first < array.numel; first += most) {
      const TensorSpan part = array.subspan(first, std::min(most, array.numel - first));
      stream_.copy(part.data, host_.data(), part.bytes());
    }
    stream_.record().wait();
  }

  std::size_t numel_;
  Stream& stream_;
  Budget budget_;
  Buffer host_;
  std::unique_ptr<cuda::PinnedRegion> pinned_;
  Buffer buffer_;
  TensorSpan param_, grad_;
  std::vector<TensorSpan> states_;
};

struct Samples {
  std::string name;
  OptimizerConfig config;
  std::vector<double> params = {}, bytes = {}, copy = {}, over_copy = {}, over_memory = {};
};

double seconds_of(Stream& stream, const std::function<void()>& queue) {
  stream.record().wait();
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < kRepeats; ++i) queue();
  stream.record().wait();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kRepeats;
}

void run_round(Samples& samples, cuda::Backend& backend, Stream& stream, DeviceArrays& arrays, std::size_t numel,
               double memory_rate) {
  const auto optimizer = backend.optimizer(samples.config);
  const std::array<Segment, 1> segments = {{{.name = "all", .shape = {}, .offset = 0, .numel = numel, .decay = true}}};
  const StepContext context = {.step = 10, .learning_rate = 1e-4, .weight_decay = 0.01, .grad_scale = 0.5f};
  arrays.take(samples.config);
  const double moved = bytes_per_parameter(samples.config) * static_cast<double>(numel);
  const double step =
      seconds_of(stream, [&] { stream.launch([&] { optimizer->step(context, arrays.views(segments)).wait(); }); });
  const std::size_t copied = std::min(static_cast<std::size_t>(moved), arrays.bytes()) / 2 * 2;
  const double copy = static_cast<double>(copied) / seconds_of(stream, [&] { arrays.copy(copied); });
  samples.params.push_back(static_cast<double>(numel) / step);
  samples.bytes.push_back(moved / step);
  samples.copy.push_back(copy);
  samples.over_copy.push_back(moved / step / copy);
  if (memory_rate > 0) samples.over_memory.push_back(moved / step / memory_rate);
}

nlohmann::json json_of(const Samples& samples) {
  nlohmann::json row = {{"bytes_per_parameter", bytes_per_parameter(samples.config)},
                        {"params_per_second", summary(samples.params)},
                        {"bytes_per_second", summary(samples.bytes)},
                        {"copy_bytes_per_second", summary(samples.copy)},
                        {"over_copy", summary(samples.over_copy)},
                        {"over_memory", nullptr}};
  if (!samples.over_memory.empty()) row["over_memory"] = summary(samples.over_memory);
  return row;
}

}  // namespace

nlohmann::json run_cuda_adam_bench(const AdamBenchOptions& options) {
  check_adam_bench(options);
  const std::size_t numel = align_up(options.numel, kScaleBlock);
  const auto backend = open_bench_backend("cuda", DeviceArrays::bytes_for(numel) + kPageBytes);
  const cuda::DeviceFacts facts = backend->facts();
  const auto stream = backend->device().create_stream("bench");
  DeviceArrays arrays(*backend, *stream, numel);
  std::vector<Samples> all;
  for (const std::string& name : options.states) {
    all.push_back({.name = name, .config = optimizer_of_states(name)});
  }
  for (std::size_t round = 0; round <= options.rounds; ++round) {
    for (Samples& samples : all) {
      if (round == 1) samples = {.name = samples.name, .config = samples.config};  // round 0 was the warm-up
      run_round(samples, *backend, *stream, arrays, numel, facts.memory_bytes_per_second);
    }
  }
  nlohmann::json states;
  for (const Samples& samples : all) states[samples.name] = json_of(samples);
  return {{"device", "cuda"}, {"gpu", device_json(facts)}, {"numel", numel}, {"rounds", options.rounds},
          {"bar", kBar},      {"states", states}};
}

std::string format_cuda_adam_bench(const nlohmann::json& result) {
  std::ostringstream out;
  out << "CUDA AdamW on " << result["gpu"]["name"].get<std::string>() << ", " << result["numel"].get<std::size_t>()
      << " parameters, " << result["rounds"].get<std::size_t>() << " rounds\n"
      << "  states             bytes  M params/s      GB/s   copy GB/s   step / copy (MAD, worst)   step / data sheet\n"
      << std::fixed;
  for (const auto& [name, row] : result["states"].items()) {
    const nlohmann::json& ratio = row["over_copy"];
    const auto rate = [&](const char* key) { return row[key]["median"].get<double>(); };
    out << "  " << std::left << std::setw(16) << name << std::right << std::setprecision(2) << std::setw(8)
        << row["bytes_per_parameter"].get<double>() << std::setprecision(0) << std::setw(12)
        << rate("params_per_second") / 1e6 << std::setw(10) << rate("bytes_per_second") / 1e9 << std::setw(12)
        << rate("copy_bytes_per_second") / 1e9 << std::setprecision(3) << std::setw(10) << ratio["median"].get<double>()
        << " (" << ratio["mad"].get<double>() << ", " << ratio["worst"].get<double>() << ")";
    if (!row["over_memory"].is_null()) out << std::setw(12) << rate("over_memory");
    out << "\n";
  }
  return out.str();
}

}  // namespace strata::bench
