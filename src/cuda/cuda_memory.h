// Device memory in the order of a stream of its own, out of a pool of its own, within a budget.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/buffer.h"
#include "cuda/errors.h"

namespace strata::cuda {

// Thread-safe. Outlives its buffers. A device without memory pools gets cudaMalloc and cudaFree, which stop the whole
// device for a moment.
class CudaMemory {
 public:
  // `keep_bytes`: freed memory that stays with the pool for later allocations instead of going back to the device.
  CudaMemory(DeviceContext& context, std::uint64_t keep_bytes);
  ~CudaMemory();
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  // `bytes` bytes from a page on, paid for in whole pages, which all streams may use at once. The buffer is freed when
  // its last use is complete. Throws: OutOfBudget; DeviceError where the budget allows what the device has not got.
  Buffer allocate(Budget& budget, std::size_t bytes, MemoryTag tag);

 private:
  std::byte* take(std::size_t bytes);
  void free(std::byte* memory) noexcept;
  [[noreturn]] void throw_out_of_memory(const Budget& budget, std::size_t bytes, const char* call);

  DeviceContext& context_;
  cudaMemPool_t pool_ = nullptr;  // null: the device has none
  cudaStream_t stream_ = nullptr;
};

}  // namespace strata::cuda
