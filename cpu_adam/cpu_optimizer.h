// CpuOptimizer: the fused optimizer step on the host.
#pragma once

#include <vector>

#include "core/optimizer_config.h"
#include "core/parallel.h"
#include "core/shard_optimizer.h"
#include "cpu_adam/isa.h"

namespace strata::cpu_adam {

struct CodedKernels;
struct ShardKernels;
struct StateKernels;
struct UpdateKernels;

// Any optimizer of OptimizerConfig over flat shards that lie in host memory: unscale, update and cast in one pass over
// memory, 28 bytes per parameter for AdamW with fp32 states in bf16 training, 14 with a remainder and 8-bit moments.
// The arithmetic is update_element of core/optimizer_math.h, the encodings are those of core/state_encodings.h; the
// bits depend on neither ISA nor thread count. Owns nothing but its choices; `parallel` must outlive it. Threads:
// step() from one thread at a time (it is the caller of parallel_for). Order: step() returns when the views are
// written, so its event is complete.
class CpuOptimizer final : public ShardOptimizer {
 public:
  // Throws: ConfigError when this machine cannot run `isa`, or STRATA_ISA is wrong (see resolve_isa).
  explicit CpuOptimizer(Parallel& parallel, OptimizerConfig config = {}, Isa isa = Isa::Auto);

  // state_specs of core/optimizer_config.h. Throws: ConfigError, see there.
  std::vector<StateSpec> states(DType param) const override;
  bool reads_param(DType param) const override;

  // Parameters and gradients are F32, BF16 or F16 in any combination; each span is aligned to its element type.
  // Elements that no segment covers keep their bytes; with 8-bit moments their moments must be zero.
  // Requires: with 8-bit moments, views.first_element is a multiple of kScaleBlock.
  // Throws: ContractViolation when types, sizes, segments or the context do not fit.
  Event step(const StepContext& context, const ShardViews& views) override;

  const OptimizerConfig& config() const { return config_; }
  // The path taken; never Auto.
  Isa isa() const { return isa_; }

 private:
  class Range;

  Parallel& parallel_;
  const OptimizerConfig config_;
  const Isa isa_;
  const ShardKernels& math_;
  const UpdateKernels& updates_;
  const StateKernels& encodings_;
  const CodedKernels* const coded_;  // null on the scalar path
};

}  // namespace strata::cpu_adam
