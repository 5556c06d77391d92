#include "cuda/cuda_shard_math.h"

#include <algorithm>
#include <mutex>

#include "core/shard_checks.h"
#include "cuda/cuda_call.h"
#include "cuda/current_stream.h"
#include "cuda/errors.h"
#include "kernels/shard_math.h"

namespace strata::cuda {
namespace {

static_assert(kernels::kNormBlock == ShardMath::kNormBlock);

int type_of(TensorSpan span) {
  return static_cast<int>(encoding_index(span.dtype));
}

std::int64_t numel_of(TensorSpan span) {
  return static_cast<std::int64_t>(span.numel);
}

class CudaShardMath final : public ShardMath {
 public:
  explicit CudaShardMath(DeviceContext& context) : context_(context) {
    context_.bind_thread();
    void* lanes = nullptr;
    check(cudaMallocHost(&lanes, kBlocksAtOnce * kernels::kSumLanes * sizeof(double)), "cudaMallocHost");
    lanes_ = static_cast<double*>(lanes);
  }
  ~CudaShardMath() override {
    context_.bind_thread_noexcept();
    context_.log(cudaFreeHost(lanes_), "cudaFreeHost");
  }
  CudaShardMath(const CudaShardMath&) = delete;
  CudaShardMath& operator=(const CudaShardMath&) = delete;

  void cast(TensorSpan destination, TensorSpan source) override {
    check_same_numel(destination, source);
    check(strata_cuda_cast(destination.data, type_of(destination), source.data, type_of(source), numel_of(source),
                           current_stream()),
          "strata_cuda_cast");
  }

  void accumulate(TensorSpan destination, TensorSpan source) override {
    check_same_numel(destination, source);
    check(strata_cuda_accumulate(destination.data, type_of(destination), source.data, type_of(source), numel_of(source),
                                 current_stream()),
          "strata_cuda_accumulate");
  }

  void sum_rows(TensorSpan rows, std::size_t count, std::size_t into) override {
    check_rows(rows, count, into);
    if (count == 1) return;
    check(strata_cuda_sum_rows(rows.data, type_of(rows), numel_of(rows) / static_cast<std::int64_t>(count),
                               static_cast<std::int64_t>(count), static_cast<std::int64_t>(into), current_stream()),
          "strata_cuda_sum_rows");
  }

  void block_sums_of_squares(TensorSpan values, std::span<double> sums) override {
    check_sums(values, sums);
    const std::lock_guard lock(mutex_);
    for (std::size_t first = 0; first < sums.size(); first += kBlocksAtOnce) {
      const std::size_t blocks = std::min(kBlocksAtOnce, sums.size() - first);
      const std::size_t begin = first * kNormBlock;
      sum_blocks(values.subspan(begin, std::min(blocks * kNormBlock, values.numel - begin)),
                 sums.subspan(first, blocks));
    }
  }

  void quantize(TensorSpan message, TensorSpan values, BlockCode code) override {
    check_message(message, values, code);
    check(strata_cuda_quantize(message.data, values.data, type_of(values), numel_of(values), static_cast<int>(code),
                               current_stream()),
          "strata_cuda_quantize");
  }

  void dequantize(TensorSpan values, TensorSpan message, BlockCode code) override {
    check_message(message, values, code);
    check(strata_cuda_dequantize(values.data, type_of(values), message.data, numel_of(values), static_cast<int>(code),
                                 current_stream()),
          "strata_cuda_dequantize");
  }

  void dequantize_add(TensorSpan sum, TensorSpan message, BlockCode code) override {
    check_sum_type(sum);
    check_message(message, sum, code);
    check(strata_cuda_dequantize_add(sum.as<float>(), message.data, numel_of(sum), static_cast<int>(code),
                                     current_stream()),
          "strata_cuda_dequantize_add");
  }

 private:
  // Sums of 2^29 elements between two waits for the device.
  static constexpr std::size_t kBlocksAtOnce = 8192;

  // The device writes the lanes of each block to pinned memory, 128 bytes for 65,536 elements, and the host folds them.
  void sum_blocks(TensorSpan values, std::span<double> sums) {
    check(strata_cuda_sum_lanes(lanes_, values.data, type_of(values), numel_of(values), current_stream()),
          "strata_cuda_sum_lanes");
    check(cudaStreamSynchronize(current_stream()), "cudaStreamSynchronize");
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] = kernels::fold_lanes(lanes_ + i * kernels::kSumLanes);
    }
  }

  DeviceContext& context_;
  std::mutex mutex_;  // of lanes_
  double* lanes_ = nullptr;
};

}  // namespace

std::unique_ptr<ShardMath> make_cuda_shard_math(DeviceContext& context) {
  return std::make_unique<CudaShardMath>(context);
}

}  // namespace strata::cuda
