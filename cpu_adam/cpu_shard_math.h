// CpuShardMath: casts, accumulation and gradient statistics on the host.
#pragma once

#include <span>

#include "core/parallel.h"
#include "core/shard_optimizer.h"
#include "cpu_adam/isa.h"

namespace strata::cpu_adam {

struct BlockKernels;
struct ShardKernels;

// ShardMath over shards in host memory. Types are F32, BF16 and F16 in any combination; each span is aligned to its
// element type. Owns nothing; `parallel` must outlive it. Threads: as many callers at a time as `parallel` takes. Each
// call returns when its work is done. The same input gives the same bits on every ISA and thread count; see [Note: norm
// order] in math_scalar.h. Throws: ContractViolation for other types and for sizes that do not match.
class CpuShardMath final : public ShardMath {
 public:
  // Throws: ConfigError, see resolve_isa.
  explicit CpuShardMath(Parallel& parallel, Isa isa = Isa::Auto);

  // Requires: the spans do not overlap.
  void cast(TensorSpan destination, TensorSpan source) override;
  void accumulate(TensorSpan destination, TensorSpan source) override;
  void sum_rows(TensorSpan rows, std::size_t count, std::size_t into) override;
  void block_sums_of_squares(TensorSpan values, std::span<double> sums) override;
  // Requires: the spans do not overlap.
  void quantize(TensorSpan message, TensorSpan values, BlockCode code) override;
  void dequantize(TensorSpan values, TensorSpan message, BlockCode code) override;
  void dequantize_add(TensorSpan sum, TensorSpan message, BlockCode code) override;

  // The path taken; never Auto.
  Isa isa() const { return isa_; }

 private:
  Parallel& parallel_;
  const Isa isa_;
  const ShardKernels& kernels_;
  const BlockKernels& block_kernels_;
};

}  // namespace strata::cpu_adam
