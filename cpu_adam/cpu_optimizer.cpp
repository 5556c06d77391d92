#include "cpu_adam/cpu_optimizer.h"

#include <algorithm>

#include "core/shard_checks.h"
#include "cpu_adam/segment_runs.h"
#include "cpu_adam/update_kernels.h"
#include "hwy/cache_control.h"

namespace strata::cpu_adam {
namespace {

// Elements per piece of work: 1.8 MB of a bf16 step with fp32 states, enough to make the hand-over cheap, little enough
// to balance threads. A multiple of kScaleBlock.
constexpr std::size_t kGrain = 65536;

}  // namespace

// One step over one view.
//
// [Note: staging] Moments that are not fp32 are defined as decode, update, encode. Where a run covers whole blocks,
// vector code does the three on the way. Elsewhere (the scalar path, ends of runs, blocks with padding or a change of
// decay inside) a block's moments pass through fp32 buffers in the first-level cache, between which each run of the
// block gets its ordinary update.
class CpuOptimizer::Range {
 public:
  Range(const CpuOptimizer& optimizer, const StepContext& context, const ShardViews& views)
      : config_(optimizer.config_),
        math_(optimizer.math_),
        encodings_(optimizer.encodings_),
        update_(entry(optimizer.updates_.update, views)),
        coded_(optimizer.coded_ == nullptr
                   ? nullptr
                   : entry(is_block8() ? optimizer.coded_->block8 : optimizer.coded_->bf16, views)),
        context_(context),
        constants_(update_constants(config_.kind, context)),
        views_(views),
        specs_(moment_specs(config_.kind)),
        moments_(views.states.subspan(has_master())) {}

  void update(std::size_t begin, std::size_t end) const {
    if (config_.moments == MomentEncoding::Fp32 || specs_.empty()) {
      std::array<float*, 2> moments = {};
      for (std::size_t k = 0; k < specs_.size(); ++k) moments[k] = moments_[k].as<float>();
      update_runs(begin, end, moments, 0);
    } else {
      update_coded(begin, end);
    }
    hwy::FlushStream();  // streamed stores are weakly ordered: make them visible before the range counts as done
  }

 private:
  using Stage = std::array<float[kScaleBlock], 2>;

  template <typename Function>
  Function entry(const KindTable<Function>& table, const ShardViews& views) const {
    return table[static_cast<std::size_t>(config_.kind)][storage_index(views.param.dtype, config_.master)]
                [encoding_index(views.grad.dtype)];
  }
  std::size_t has_master() const { return views_.param.dtype == DType::F32 ? 0 : 1; }
  bool is_block8() const { return config_.moments == MomentEncoding::Block8; }
  std::uint64_t index_of(std::size_t element) const { return views_.first_element + element; }
  RandomKey key_at(std::uint64_t index) const {
    return random_key(context_.seed, static_cast<std::uint64_t>(context_.step),
                      static_cast<std::uint32_t>(index >> 32));
  }

  // Everything of a run but its moments.
  UpdateRun run_at(std::size_t first, std::size_t numel, bool decay) const {
    const TensorSpan master = has_master() ? views_.states.front() : views_.param;
    UpdateRun run;
    run.param = views_.param.subspan(first, numel).data;
    run.grad = views_.grad.subspan(first, numel).data;
    run.master = master.subspan(first, numel).data;
    run.numel = numel;
    run.decay = decay ? constants_.decay : constants_.no_decay;
    return run;
  }

  // Updates the elements [begin, end) of the view; moments[k] holds those of the elements from `moments_first` on.
  void update_runs(std::size_t begin, std::size_t end, const std::array<float*, 2>& moments,
                   std::size_t moments_first) const {
    for_each_run(views_.segments, begin, end, [&](std::size_t first, std::size_t numel, bool decay) {
      UpdateRun run = run_at(first, numel, decay);
      for (std::size_t k = 0; k < specs_.size(); ++k) run.moments[k] = moments[k] + (first - moments_first);
      update_(constants_, run);
    });
  }

  void update_coded(std::size_t begin, std::size_t end) const {
    for (std::size_t first = begin; first < end;) {
      std::size_t done = coded_ == nullptr ? 0 : update_whole(first, end);
      if (done == 0) {
        done = std::min<std::size_t>(end - first, kScaleBlock - index_of(first) % kScaleBlock);
        update_staged(first, first + done);
      }
      first += done;
    }
  }

  // Gives the run that starts at `first` to the vector code. Returns how many elements are done.
  std::size_t update_whole(std::size_t first, std::size_t end) const {
    const std::uint64_t index = index_of(first);
    const auto segment = segment_at(views_.segments, first);
    if (segment == views_.segments.end() || (is_block8() && index % kScaleBlock != 0)) return 0;
    const std::uint64_t to_next_key = (std::uint64_t{1} << 32) - static_cast<std::uint32_t>(index);
    const std::size_t run_end = std::min(end, segment->offset + segment->numel);
    const std::size_t numel = std::min<std::uint64_t>(run_end - first, to_next_key);
    CodedRun run;
    static_cast<UpdateRun&>(run) = run_at(first, numel, segment->decay);
    for (std::size_t k = 0; k < specs_.size(); ++k) {
      run.codes[k] = moments_[is_block8() ? 2 * k : k].subspan(first, numel).data;
      if (is_block8()) run.scales[k] = moments_[2 * k + 1].as<float>() + first / kScaleBlock;
    }
    run.key = key_at(index);
    run.first_index = static_cast<std::uint32_t>(index);
    return coded_(constants_, run);
  }

  // Requires: [first, end) lies within one block of the grid.
  void update_staged(std::size_t first, std::size_t end) const {
    if (!any_run(views_.segments, first, end)) return;
    alignas(64) Stage stage;
    const std::size_t numel = end - first;
    for (std::size_t k = 0; k < specs_.size(); ++k) decode(k, first, stage[k], numel);
    update_runs(first, end, {stage[0], stage[1]}, first);
    if (is_block8()) {
      for (std::size_t k = 0; k < specs_.size(); ++k) encode_block(k, first, stage[k], numel);
    } else {
      round(first, stage, numel);
    }
  }

  void decode(std::size_t k, std::size_t first, float* values, std::size_t numel) const {
    if (is_block8()) {
      const auto range = static_cast<std::size_t>(specs_[k].range);
      const float scale = moments_[2 * k + 1].as<float>()[first / kScaleBlock];
      encodings_.decode_block[range](moments_[2 * k].as<std::uint8_t>() + first, scale, values, numel);
    } else {
      math_.cast[F32::kIndex][Bf16::kIndex](reinterpret_cast<std::byte*>(values),
                                            moments_[k].subspan(first, numel).data, numel);
    }
  }

  void encode_block(std::size_t k, std::size_t first, const float* values, std::size_t numel) const {
    const auto range = static_cast<std::size_t>(specs_[k].range);
    moments_[2 * k + 1].as<float>()[first / kScaleBlock] =
        encodings_.encode_block[range](values, moments_[2 * k].as<std::uint8_t>() + first, numel);
  }

  void round(std::size_t first, const Stage& stage, std::size_t numel) const {
    StochasticRun run;
    run.moments = specs_.size();
    run.numel = numel;
    run.key = key_at(index_of(first));
    run.first_index = static_cast<std::uint32_t>(index_of(first));
    for (std::size_t k = 0; k < specs_.size(); ++k) {
      run.values[k] = stage[k];
      run.codes[k] = moments_[k].as<std::uint16_t>() + first;
    }
    encodings_.round_stochastically(run);
  }

  const OptimizerConfig& config_;
  const ShardKernels& math_;
  const StateKernels& encodings_;
  const UpdateKernels::Update update_;
  const CodedKernels::Update coded_;  // null: everything is staged
  const StepContext& context_;
  const UpdateConstants constants_;
  const ShardViews& views_;
  const std::vector<MomentSpec> specs_;
  const std::span<const TensorSpan> moments_;  // an 8-bit one is followed by its scales
};

CpuOptimizer::CpuOptimizer(Parallel& parallel, OptimizerConfig config, Isa isa)
    : parallel_(parallel),
      config_(config),
      isa_(resolve_isa(isa)),
      math_(shard_kernels(isa_)),
      updates_(update_kernels(isa_)),
      encodings_(state_kernels(isa_)),
      coded_(simd_coded_kernels(isa_)) {}

std::vector<StateSpec> CpuOptimizer::states(DType param) const {
  encoding_index(param);  // refuses other types
  return state_specs(config_, param);
}

bool CpuOptimizer::reads_param(DType param) const {
  return strata::reads_param(config_, param);
}

Event CpuOptimizer::step(const StepContext& context, const ShardViews& views) {
  check_step(context, views, states(views.param.dtype));
  const Range range(*this, context, views);
  parallel_.parallel_for(views.param.numel, kGrain,
                         [&](std::size_t begin, std::size_t end) { range.update(begin, end); });
  return Event();
}

}  // namespace strata::cpu_adam
