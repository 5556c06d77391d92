// The fused step and the ceiling loops behind plain C functions, for bench/adam_vs_peers.py: it calls them on torch's
// own tensors, so that both sides work on the same memory in the same process.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include "bench/memory_ceiling.h"
#include "core/parallel.h"
#include "cpu_adam/cpu_optimizer.h"

namespace {

using namespace strata;

struct Session {
  std::unique_ptr<Parallel> parallel;
  OptimizerConfig config;
  std::unique_ptr<cpu_adam::CpuOptimizer> optimizer;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

constexpr std::size_t kGrain = 65536;

}  // namespace

extern "C" {

// AdamW with these encodings ("fp32", "remainder"; "fp32", "bf16", "8bit"). Null, with a message, when that fails.
void* strata_adam_open(const char* master, const char* moments, std::size_t threads) {
  try {
    auto session = std::make_unique<Session>();
    session->parallel = make_thread_pool(threads);
    session->config.master = master_encoding_from_name(master);
    session->config.moments = moment_encoding_from_name(moments);
    session->optimizer = std::make_unique<cpu_adam::CpuOptimizer>(*session->parallel, session->config);
    return session.release();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return nullptr;
  }
}

void strata_adam_close(void* session) {
  delete static_cast<Session*>(session);
}

// One step. `types` name parameter and gradient ("BF16", "F32"); `states` are in the order of state_specs. Returns the
// seconds it took, or -1 with a message.
double strata_adam_step(void* session, std::int64_t step, const char* param_type, void* param, const char* grad_type,
                        void* grad, void** states, std::size_t numel) {
  try {
    const auto& [parallel, config, optimizer] = *static_cast<Session*>(session);
    const DType param_dtype = dtype_from_name(param_type).value();
    std::vector<TensorSpan> spans;
    for (const StateSpec& spec : optimizer->states(param_dtype)) {
      spans.push_back({static_cast<std::byte*>(states[spans.size()]), spec.dtype, spec.values_for(numel)});
    }
    const std::array<Segment, 1> segments = {
        {{.name = "all", .shape = {}, .offset = 0, .numel = numel, .decay = true}}};
    const ShardViews views = {{static_cast<std::byte*>(param), param_dtype, numel},
                              {static_cast<std::byte*>(grad), dtype_from_name(grad_type).value(), numel},
                              spans,
                              segments};
    const auto start = std::chrono::steady_clock::now();
    optimizer->step({.step = step, .learning_rate = 1e-4, .weight_decay = 0.01}, views).wait();
    return seconds_since(start);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return -1;
  }
}

// Seconds of the best of several loops that move the streams of a bf16 step with fp32 states. Requires: numel is a
// multiple of 64, arrays are 64-byte aligned. Overwrites `param`.
double strata_adam_ceiling(void* session, void* param, void* grad, void* master, void* exp_avg, void* exp_avg_sq,
                           std::size_t numel) {
  Parallel& parallel = *static_cast<Session*>(session)->parallel;
  bench::Streams streams;
  streams.grad = static_cast<std::uint8_t*>(grad);
  streams.param = static_cast<std::uint8_t*>(param);
  streams.fours = {static_cast<std::uint8_t*>(master), static_cast<std::uint8_t*>(exp_avg),
                   static_cast<std::uint8_t*>(exp_avg_sq)};
  double best = 1e9;
  for (const bench::CeilingLoop& loop : bench::ceiling_loops({})) {
    const auto start = std::chrono::steady_clock::now();
    parallel.parallel_for(numel, kGrain, [&](std::size_t begin, std::size_t end) { loop.run(streams, begin, end); });
    best = std::min(best, seconds_since(start));
  }
  return best;
}

}  // extern "C"
