#include "cuda/cuda_optimizer.h"

#include <vector>

#include "core/shard_checks.h"
#include "cuda/cuda_call.h"
#include "cuda/current_stream.h"
#include "cuda/update_ranges.h"
#include "kernels/update.h"

namespace strata::cuda {
namespace {

using kernels::UpdateRun;

kernels::Storage storage_of(DType param, MasterEncoding master) {
  if (param == DType::F32) return kernels::Storage::F32;
  if (param == DType::F16) return kernels::Storage::F16;
  return master == MasterEncoding::Remainder ? kernels::Storage::Bf16Remainder : kernels::Storage::Bf16;
}

class CudaOptimizer final : public ShardOptimizer {
 public:
  explicit CudaOptimizer(const OptimizerConfig& config) : config_(config) {}

  std::vector<StateSpec> states(DType param) const override {
    encoding_index(param);  // refuses other types
    return state_specs(config_, param);
  }

  bool reads_param(DType param) const override { return strata::reads_param(config_, param); }

  Event step(const StepContext& context, const ShardViews& views) override {
    check_step(context, views, states(views.param.dtype));
    UpdateRun run;
    run.constants = update_constants(config_.kind, context);
    run.kind = config_.kind;
    run.storage = storage_of(views.param.dtype, config_.master);
    run.grad_type = static_cast<std::uint8_t>(encoding_index(views.grad.dtype));
    for (std::size_t from = 0;;) {
      const UpdateRange range =
          next_update_range(views.segments, views.param.numel, views.first_element, from, run.intervals);
      if (range.empty()) return Event();
      place(run, context, views, range);
      queue(run);
      from = range.end;
    }
  }

 private:
  // Points `run` at the elements of `range`.
  void place(UpdateRun& run, const StepContext& context, const ShardViews& views, UpdateRange range) const {
    const auto at = [&](TensorSpan span) { return span.data + range.begin * bytes_of(span.dtype); };
    const bool has_master = views.param.dtype != DType::F32;
    const bool has_scales = config_.moments == MomentEncoding::Block8;
    run.param = at(views.param);
    run.grad = at(views.grad);
    run.master = at(has_master ? views.states.front() : views.param);
    for (std::size_t k = 0; k < moments_of(config_.kind); ++k) {
      const auto moment = views.states.subspan((has_master ? 1 : 0) + (has_scales ? 2 : 1) * k);
      run.moments[k] = at(moment[0]);
      if (has_scales) run.scales[k] = moment[1].as<float>() + range.begin / kScaleBlock;
    }
    run.numel = static_cast<std::int64_t>(range.end - range.begin);
    const std::uint64_t index = views.first_element + range.begin;
    run.first_index = static_cast<std::uint32_t>(index);
    run.key =
        random_key(context.seed, static_cast<std::uint64_t>(context.step), static_cast<std::uint32_t>(index >> 32));
  }

  void queue(const UpdateRun& run) const {
    if (config_.moments == MomentEncoding::Fp32 || moments_of(config_.kind) == 0) {
      check(strata_cuda_update_fp32(&run, current_stream()), "strata_cuda_update_fp32");
    } else if (config_.moments == MomentEncoding::Bf16) {
      check(strata_cuda_update_bf16(&run, current_stream()), "strata_cuda_update_bf16");
    } else {
      check(strata_cuda_update_block8(&run, current_stream()), "strata_cuda_update_block8");
    }
  }

  const OptimizerConfig config_;
};

}  // namespace

std::unique_ptr<ShardOptimizer> make_cuda_optimizer(const OptimizerConfig& config) {
  return std::make_unique<CudaOptimizer>(config);
}

}  // namespace strata::cuda
