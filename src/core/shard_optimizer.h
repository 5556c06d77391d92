// Port: an optimizer over flat shards. The CPU (cpu_adam) and CUDA (kernels) implement it with the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/block_codes.h"
#include "core/buffer.h"
#include "core/event.h"

namespace strata {

// One parameter's run inside a view. `offset` counts elements from the start of the view.
struct Segment {
  std::string name;
  std::vector<std::int64_t> shape;  // of the whole parameter, row-major
  std::size_t offset = 0;
  std::size_t numel = 0;
  bool decay = true;  // decoupled weight decay applies
};

// A tensor that the optimizer keeps beside a parameter. Zeroed memory is its initial state, but for a master.
struct StateSpec {
  std::string name;  // "master", "exp_avg", "exp_avg_sq", ...
  DType dtype = DType::F32;
  // Parameter elements that share one value: value i belongs to the elements from i * elements_per_value on, counted
  // from the start of the rank's shard. Whoever cuts a shard cuts at multiples of it (all are powers of two up to 256).
  std::size_t elements_per_value = 1;

  std::size_t values_for(std::size_t numel) const { return (numel + elements_per_value - 1) / elements_per_value; }
};

// What one step needs beside the views. Bias corrections are pure functions of `step`.
struct StepContext {
  std::int64_t step = 1;  // 1 for the first update
  double learning_rate = 0;
  double beta1 = 0.9;  // of SGD: the momentum
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  float grad_scale = 1;  // gradient used = stored gradient * grad_scale (1/tokens, clip factor and 1/loss scale fused)
  std::uint64_t seed = 0;  // of stochastic rounding, which also takes `step`
};

// A run of consecutive elements of one shard with everything that belongs to them. Parameter and gradient have the same
// numel, a state has values_for(numel) values.
struct ShardViews {
  TensorSpan param;                    // read only where reads_param() says so; written
  TensorSpan grad;                     // fp32 or 16-bit; read only
  std::span<const TensorSpan> states;  // in the order of states()
  std::span<const Segment> segments;   // sorted, disjoint; padding between them is not updated
  // Index of the first element in the model, the same whatever the placement and the number of ranks: group << 40, plus
  // the offset in the group's flat layout. Only stochastic rounding and the grid of 8-bit blocks look at it.
  std::uint64_t first_element = 0;
};

class ShardOptimizer {
 public:
  virtual ~ShardOptimizer() = default;
  // The states kept for parameters of type `param`; 16-bit parameters have their master, or what completes it, first.
  virtual std::vector<StateSpec> states(DType param) const = 0;
  // Whether step() reads the parameters before it writes them. fp32 parameters are the master itself.
  virtual bool reads_param(DType param) const { return param == DType::F32; }
  // Updates the views. The event completes when they are written; views must stay valid until then.
  virtual Event step(const StepContext& context, const ShardViews& views) = 0;
};

// Elementwise work on shards where they lie. Fixed order: the same input gives the same bits on every thread count.
class ShardMath {
 public:
  // Sums of squares are taken in double over blocks of this many elements, blocks added in index order.
  static constexpr std::size_t kNormBlock = 65536;

  virtual ~ShardMath() = default;
  // destination = source, converted (fp32 <-> 16-bit by the one rounding rule). Same numel.
  virtual void cast(TensorSpan destination, TensorSpan source) = 0;
  // destination += source, added in fp32 and rounded once to the destination's type.
  virtual void accumulate(TensorSpan destination, TensorSpan source) = 0;
  // `rows` is [count, numel / count]; row `into` becomes the sum of all: added in row order, in fp32, rounded once. The
  // other rows stay. Requires: `count` > 0 divides numel, `into` < count.
  virtual void sum_rows(TensorSpan rows, std::size_t count, std::size_t into) = 0;
  // Sum of squares of one block of at most kNormBlock elements each into sums[i]; sums.size() == ceil(numel /
  // kNormBlock). A non-finite element makes its block's sum non-finite.
  virtual void block_sums_of_squares(TensorSpan values, std::span<double> sums) = 0;

  // [Note: block codes]: between values, fp32 or 16-bit, and the message that stands for them. `message` is U8, of
  // message_bytes(code, values.numel) elements, at a multiple of 4 bytes.
  virtual void quantize(TensorSpan message, TensorSpan values, BlockCode code) = 0;
  virtual void dequantize(TensorSpan values, TensorSpan message, BlockCode code) = 0;
  // sum += values of the message. `sum` is fp32.
  virtual void dequantize_add(TensorSpan sum, TensorSpan message, BlockCode code) = 0;
};

}  // namespace strata
