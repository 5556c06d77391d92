// CpuAdamW: the fused AdamW step on the host.
#pragma once

#include <vector>

#include "core/parallel.h"
#include "core/shard_optimizer.h"
#include "cpu_adam/isa.h"

namespace strata::cpu_adam {

struct ShardKernels;

// AdamW over flat shards that lie in host memory: unscale, moments, update and cast in one pass over memory, 28 bytes
// per parameter for bf16. The arithmetic is adam_update of core/adam_math.h; the bits depend on neither ISA nor thread
// count. Owns nothing but its choice of ISA; `parallel` must outlive it. Threads: step() from one thread at a time (it
// is the caller of parallel_for). Order: step() returns when the views are written, so its event is complete.
class CpuAdamW final : public ShardOptimizer {
 public:
  // Throws: ConfigError when this machine cannot run `isa`, or STRATA_ISA is wrong (see resolve_isa).
  explicit CpuAdamW(Parallel& parallel, Isa isa = Isa::Auto);

  // fp32: exp_avg, exp_avg_sq. bf16 and fp16: master, exp_avg, exp_avg_sq. All states are fp32.
  std::vector<StateSpec> states(DType param) const override;

  // Parameters and gradients are F32, BF16 or F16 in any combination; each span is aligned to its element type.
  // Elements that no segment covers are neither read nor written. Throws: ContractViolation when types, sizes, segments
  // or the context do not fit.
  Event step(const StepContext& context, const ShardViews& views) override;

  // The path taken; never Auto.
  Isa isa() const;

 private:
  Parallel& parallel_;
  const ShardKernels& kernels_;
};

}  // namespace strata::cpu_adam
