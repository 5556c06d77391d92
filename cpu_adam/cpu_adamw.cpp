#include "cpu_adam/cpu_adamw.h"

#include <string>

#include "core/error.h"
#include "cpu_adam/segment_runs.h"
#include "cpu_adam/shard_kernels.h"

namespace strata::cpu_adam {
namespace {

// Elements per piece of work: 1.8 MB of a bf16 step, enough to make the hand-over cheap, little enough to balance
// threads.
constexpr std::size_t kGrain = 65536;

void check_context(const StepContext& context) {
  STRATA_EXPECTS(context.step >= 1, "the first step is 1, got " + std::to_string(context.step));
  STRATA_EXPECTS(context.beta1 >= 0 && context.beta1 < 1, "beta1 is in [0, 1), got " + std::to_string(context.beta1));
  STRATA_EXPECTS(context.beta2 >= 0 && context.beta2 < 1, "beta2 is in [0, 1), got " + std::to_string(context.beta2));
}

void check_segments(const ShardViews& views) {
  std::size_t end = 0;
  for (const Segment& segment : views.segments) {
    STRATA_EXPECTS(segment.offset >= end, "segment " + segment.name + " at " + std::to_string(segment.offset) +
                                              " overlaps the one before, which ends at " + std::to_string(end));
    STRATA_EXPECTS(segment.offset <= views.param.numel && segment.numel <= views.param.numel - segment.offset,
                   "segment " + segment.name + " reaches past the view of " + std::to_string(views.param.numel));
    end = segment.offset + segment.numel;
  }
}

void check_views(const std::vector<StateSpec>& specs, const ShardViews& views) {
  const std::size_t numel = views.param.numel;
  STRATA_EXPECTS(views.grad.numel == numel, "gradient has " + std::to_string(views.grad.numel) +
                                                " elements, parameter has " + std::to_string(numel));
  STRATA_EXPECTS(views.states.size() == specs.size(),
                 "expected " + std::to_string(specs.size()) + " states, got " + std::to_string(views.states.size()));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    STRATA_EXPECTS(views.states[i].dtype == specs[i].dtype && views.states[i].numel == numel,
                   "state " + specs[i].name + " must be " + std::string(name_of(specs[i].dtype)) + " with " +
                       std::to_string(numel) + " elements");
  }
  check_segments(views);
}

// Pointers to the elements [first, first + numel) of the views.
AdamRun run_at(const ShardViews& views, std::size_t first, std::size_t numel) {
  const bool param_is_master = views.param.dtype == DType::F32;
  const auto states = views.states.last(2);
  AdamRun run;
  run.param = views.param.subspan(first, numel).data;
  run.grad = views.grad.subspan(first, numel).data;
  run.master = (param_is_master ? views.param : views.states.front()).as<float>() + first;
  run.exp_avg = states[0].as<float>() + first;
  run.exp_avg_sq = states[1].as<float>() + first;
  run.numel = numel;
  return run;
}

}  // namespace

CpuAdamW::CpuAdamW(Parallel& parallel, Isa isa) : parallel_(parallel), kernels_(kernels_for(resolve_isa(isa))) {}

std::vector<StateSpec> CpuAdamW::states(DType param) const {
  const bool has_master = encoding_index(param) != encoding_index(DType::F32);
  std::vector<StateSpec> specs = {{"exp_avg", DType::F32}, {"exp_avg_sq", DType::F32}};
  if (has_master) specs.insert(specs.begin(), {"master", DType::F32});
  return specs;
}

Event CpuAdamW::step(const StepContext& context, const ShardViews& views) {
  check_context(context);
  check_views(states(views.param.dtype), views);
  const AdamConstants constants = adam_constants(context);
  const auto adam = kernels_.adam[encoding_index(views.param.dtype)][encoding_index(views.grad.dtype)];

  parallel_.parallel_for(views.param.numel, kGrain, [&](std::size_t begin, std::size_t end) {
    for_each_run(views.segments, begin, end, [&](std::size_t first, std::size_t numel, bool decay) {
      AdamRun run = run_at(views, first, numel);
      run.decay_factor = decay ? constants.decay_factor : 1.0f;
      adam(constants, run);
    });
  });
  return Event();
}

Isa CpuAdamW::isa() const {
  return kernels_.isa;
}

}  // namespace strata::cpu_adam
