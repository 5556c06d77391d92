#include "cuda/cuda_memory.h"

#include <utility>

#include "core/bytes.h"
#include "core/error.h"
#include "core/page_mapping.h"

namespace strata::cuda {
namespace {

bool is_page(const std::byte* memory) {
  return reinterpret_cast<std::uintptr_t>(memory) % kPageBytes == 0;
}

std::byte* next_page(std::byte* memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  return memory + (align_up(address, kPageBytes) - address);
}

}  // namespace

CudaMemory::CudaMemory(DeviceContext& context, std::uint64_t keep_bytes) : context_(context) {
  context_.bind_thread();
  int pools = 0;
  context_.check(cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, context_.index()),
                 "cudaDeviceGetAttribute");
  if (pools == 0) return;
  context_.check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.handleTypes = cudaMemHandleTypeNone;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = context_.index();
  context_.check(cudaMemPoolCreate(&pool_, &properties), "cudaMemPoolCreate");
  context_.check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep_bytes),
                 "cudaMemPoolSetAttribute");
}

CudaMemory::~CudaMemory() {
  context_.bind_thread_noexcept();
  if (stream_ != nullptr) {
    context_.log(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    context_.log(cudaStreamDestroy(stream_), "cudaStreamDestroy");
  }
  if (pool_ != nullptr) context_.log(cudaMemPoolDestroy(pool_), "cudaMemPoolDestroy");
}

Buffer CudaMemory::allocate(Budget& budget, std::size_t bytes, MemoryTag tag) {
  if (bytes == 0) return Buffer();
  std::size_t taken = whole_pages(bytes);
  Reservation reservation = budget.reserve(taken, tag);
  context_.bind_thread();
  std::byte* memory = take(taken);
  if (memory != nullptr && !is_page(memory)) {
    // CUDA promises an alignment of 256 bytes. What it gives for whole pages begins at one as a rule; where it does
    // not, a page more does.
    free(memory);
    reservation.release();
    taken += kPageBytes;
    reservation = budget.reserve(taken, tag);
    memory = take(taken);
  }
  if (memory == nullptr)
    throw_out_of_memory(budget, taken, pool_ != nullptr ? "cudaMallocFromPoolAsync" : "cudaMalloc");
  return Buffer(next_page(memory), bytes, MemorySpace::Device, std::move(reservation),
                [this, memory](std::byte* /*page*/, std::size_t /*bytes*/) { free(memory); });
}

// Null: the device has not got it.
std::byte* CudaMemory::take(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error =
      pool_ != nullptr ? cudaMallocFromPoolAsync(&memory, bytes, pool_, stream_) : cudaMalloc(&memory, bytes);
  if (error == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // taken back; see check()
    return nullptr;
  }
  context_.check(error, pool_ != nullptr ? "cudaMallocFromPoolAsync" : "cudaMalloc");
  // From here on it belongs to every stream.
  if (pool_ != nullptr) context_.check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  return static_cast<std::byte*>(memory);
}

void CudaMemory::free(std::byte* memory) noexcept {
  context_.bind_thread_noexcept();
  if (pool_ != nullptr) {
    context_.log(cudaFreeAsync(memory, stream_), "cudaFreeAsync");
  } else {
    context_.log(cudaFree(memory), "cudaFree");
  }
}

void CudaMemory::throw_out_of_memory(const Budget& budget, std::size_t bytes, const char* call) {
  std::size_t available = 0;
  std::size_t total = 0;
  context_.check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
  throw DeviceError(std::string(call) + ": the GPU has no " + format_bytes(bytes) + " left, though the budget of " +
                    budget.name() + " allows them (" + format_bytes(budget.limit()) + "): " + format_bytes(available) +
                    " of " + format_bytes(total) +
                    " are free. Lower the device budget, or end what else uses this GPU (nvidia-smi shows it)");
}

}  // namespace strata::cuda
