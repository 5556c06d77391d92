// Memory of the fake runtime.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/bytes.h"
#include "support/fake_cuda/runtime.h"

namespace strata::fake_cuda {
namespace {

constexpr std::size_t kGuardBytes = 4096;
constexpr std::byte kGuard{0xa5};
constexpr std::byte kPoison{0xff};  // a NaN in every floating-point type

std::uintptr_t address_of(const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory);
}

bool guards_hold(const Region& region) {
  const std::byte* const begin = region.block.data();
  const std::byte* const end = begin + region.block.size();
  const auto is_guard = [](std::byte value) { return value == kGuard; };
  return std::all_of(begin, static_cast<const std::byte*>(region.data), is_guard) &&
         std::all_of(static_cast<const std::byte*>(region.data) + region.bytes, end, is_guard);
}

std::string text_of(const Region& region) {
  return (region.device < 0 ? "pinned memory of " : "device memory of ") + std::to_string(region.bytes) + " bytes";
}

}  // namespace

cudaError_t Memory::allocate(void** memory, std::size_t bytes, bool usable) {
  const Config config = Runtime::get().config();
  const std::lock_guard lock(mutex_);
  std::uint64_t& used = used_[current_device()];
  if (bytes > config.memory_bytes - used) return cudaErrorMemoryAllocation;
  used += bytes;
  auto region = std::make_shared<Region>();
  region->bytes = bytes;
  region->device = current_device();
  region->usable = usable;
  region->block.assign(bytes + 4 * kGuardBytes, kGuard);
  const std::uintptr_t page = align_up(address_of(region->block.data()) + kGuardBytes, kGuardBytes);
  region->data = region->block.data() + (page - address_of(region->block.data())) + (config.unaligned ? 256 : 0);
  std::fill_n(region->data, bytes, kPoison);
  *memory = region->data;
  regions_.emplace(address_of(region->data), std::move(region));
  return cudaSuccess;
}

cudaError_t Memory::make_usable(const void* memory) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Region> region = find(memory);
  if (!region) return cudaErrorInvalidValue;
  region->usable = true;
  return cudaSuccess;
}

cudaError_t Memory::free(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(address_of(memory));
  if (found == regions_.end() || found->second->device < 0) return cudaErrorInvalidValue;
  const std::shared_ptr<Region> region = std::move(found->second);
  regions_.erase(found);
  used_[region->device] -= region->bytes;
  check_idle(*region, " was freed while queued work uses it");
  if (!guards_hold(*region)) Runtime::get().violation("bytes outside of " + text_of(*region) + " were written");
  region->freed = true;
  std::fill_n(region->data, region->bytes, kPoison);
  std::vector<std::byte>().swap(region->block);
  return cudaSuccess;
}

bool Memory::owns(const void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(address_of(memory));
  return found != regions_.end() && found->second->device >= 0;
}

cudaError_t Memory::pin(void* memory, std::size_t bytes) {
  if (memory == nullptr || bytes == 0) return cudaErrorInvalidValue;
  const std::lock_guard lock(mutex_);
  for (const auto& [address, region] : regions_) {
    if (address < address_of(memory) + bytes && address_of(memory) < address + region->bytes) {
      return region->device < 0 ? cudaErrorHostMemoryAlreadyRegistered : cudaErrorInvalidValue;
    }
  }
  auto region = std::make_shared<Region>();
  region->data = static_cast<std::byte*>(memory);
  region->bytes = bytes;
  regions_.emplace(address_of(memory), std::move(region));
  return cudaSuccess;
}

cudaError_t Memory::unpin(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(address_of(memory));
  if (found == regions_.end() || found->second->device >= 0) return cudaErrorHostMemoryNotRegistered;
  check_idle(*found->second, " was unpinned while queued work uses it");
  found->second->freed = true;
  regions_.erase(found);
  return cudaSuccess;
}

void Memory::check_idle(const Region& region, const char* what) {
  if (region.queued != 0) Runtime::get().violation(text_of(region) + what);
}

std::shared_ptr<Region> Memory::find(const void* memory) {
  auto after = regions_.upper_bound(address_of(memory));
  if (after == regions_.begin()) return nullptr;
  const std::shared_ptr<Region>& region = std::prev(after)->second;
  return address_of(memory) < address_of(region->data) + region->bytes ? region : nullptr;
}

cudaError_t Memory::begin_use(const void* memory, std::size_t bytes, Range& range) {
  const std::lock_guard lock(mutex_);
  range = {static_cast<std::byte*>(const_cast<void*>(memory)), bytes, find(memory)};
  if (!range.region) return cudaSuccess;
  if (range.data + bytes > range.region->data + range.region->bytes) {
    range.region.reset();
    return cudaErrorInvalidValue;
  }
  ++range.region->queued;
  return cudaSuccess;
}

bool Memory::check_use(const Range& range) {
  if (!range.region) return true;
  const std::lock_guard lock(mutex_);
  if (range.region->usable && !range.region->freed) return true;
  Runtime::get().violation(text_of(*range.region) + (range.region->freed ? " was used after it was freed"
                                                                         : " was used before its allocation had run"));
  return false;
}

void Memory::end_use(const Range& range) {
  if (!range.region) return;
  const std::lock_guard lock(mutex_);
  --range.region->queued;
}

std::uint64_t Memory::free_bytes(int device) {
  const Config config = Runtime::get().config();
  const std::lock_guard lock(mutex_);
  return config.memory_bytes - used_[device];
}

cudaError_t Memory::create_pool(cudaMemPool_t* pool) {
  const std::lock_guard lock(mutex_);
  *pool = reinterpret_cast<cudaMemPool_t>(++pools_created_);
  pools_.insert(*pool);
  return cudaSuccess;
}

cudaError_t Memory::destroy_pool(cudaMemPool_t pool) {
  const std::lock_guard lock(mutex_);
  return pools_.erase(pool) == 1 ? cudaSuccess : cudaErrorInvalidValue;
}

bool Memory::has_pool(cudaMemPool_t pool) {
  const std::lock_guard lock(mutex_);
  return pools_.count(pool) == 1;
}

void Memory::count(Alive& alive) {
  const std::lock_guard lock(mutex_);
  alive.pools = pools_.size();
  for (const auto& [address, region] : regions_)
    ++(region->device < 0 ? alive.pinned_regions : alive.device_allocations);
}

void Memory::reset() {
  const std::lock_guard lock(mutex_);
  regions_.clear();
  used_.clear();
  pools_.clear();
}

}  // namespace strata::fake_cuda

using strata::fake_cuda::api;
using strata::fake_cuda::FakeStream;
using strata::fake_cuda::Memory;
using strata::fake_cuda::Range;
using strata::fake_cuda::Runtime;

cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* total) {
  return api("cudaMemGetInfo", [&] {
    *available = Runtime::get().memory.free_bytes(strata::fake_cuda::current_device());
    *total = Runtime::get().config().memory_bytes;
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return api("cudaMalloc", [&] { return Runtime::get().memory.allocate(memory, bytes, true); });
}

cudaError_t cudaFree(void* memory) {
  return api("cudaFree", [&] { return Runtime::get().memory.free(memory); });
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  return api("cudaMemPoolCreate", [&] {
    if (!Runtime::get().config().pools) return cudaErrorNotSupported;
    if (properties->allocType != cudaMemAllocationTypePinned) return cudaErrorInvalidValue;
    return Runtime::get().memory.create_pool(pool);
  });
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  return api("cudaMemPoolDestroy", [&] { return Runtime::get().memory.destroy_pool(pool); });
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* /*value*/) {
  return api("cudaMemPoolSetAttribute", [&] {
    const bool known = Runtime::get().memory.has_pool(pool) && attribute == cudaMemPoolAttrReleaseThreshold;
    return known ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaMallocFromPoolAsync(void** memory, std::size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  return api("cudaMallocFromPoolAsync", [&] {
    const auto found = Runtime::get().streams.find(stream);
    if (!found) return cudaErrorInvalidResourceHandle;
    if (!Runtime::get().memory.has_pool(pool)) return cudaErrorInvalidValue;
    const cudaError_t error = Runtime::get().memory.allocate(memory, bytes, false);
    if (error == cudaSuccess) found->push([made = *memory] { Runtime::get().memory.make_usable(made); });
    return error;
  });
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  return api("cudaFreeAsync", [&] {
    const auto found = Runtime::get().streams.find(stream);
    if (!found) return cudaErrorInvalidResourceHandle;
    if (!Runtime::get().memory.owns(memory)) return cudaErrorInvalidValue;
    found->push([memory] {
      if (Runtime::get().memory.free(memory) != cudaSuccess) Runtime::get().violation("memory was freed twice");
    });
    return cudaSuccess;
  });
}

cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned int /*flags*/) {
  return api("cudaHostRegister", [&] { return Runtime::get().memory.pin(memory, bytes); });
}

cudaError_t cudaHostUnregister(void* memory) {
  return api("cudaHostUnregister", [&] { return Runtime::get().memory.unpin(memory); });
}

cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  return api("cudaMallocHost", [&] {
    *memory = std::aligned_alloc(strata::kPageBytes, strata::align_up(bytes, strata::kPageBytes));
    if (*memory == nullptr) return cudaErrorMemoryAllocation;
    return Runtime::get().memory.pin(*memory, bytes);
  });
}

cudaError_t cudaFreeHost(void* memory) {
  return api("cudaFreeHost", [&] {
    const cudaError_t error = Runtime::get().memory.unpin(memory);
    if (error == cudaSuccess) std::free(memory);
    return error;
  });
}

namespace {

// Copies on the stream's thread, from `staged` where that is not empty.
void run_copy(const Range& to, const Range& from, const std::vector<std::byte>& staged) {
  Memory& memory = Runtime::get().memory;
  const bool usable = memory.check_use(to) && memory.check_use(from);
  if (usable && Runtime::get().lost() == cudaSuccess) {
    std::memcpy(to.data, staged.empty() ? from.data : staged.data(), to.bytes);
  }
  memory.end_use(to);
  memory.end_use(from);
}

}  // namespace

// Out of pageable memory CUDA copies into a buffer of its own before it returns; into pageable memory it returns when
// the bytes are there.
cudaError_t cudaMemcpyAsync(void* destination, const void* source, std::size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t stream) {
  return api("cudaMemcpyAsync", [&] {
    const auto found = Runtime::get().streams.find(stream);
    if (!found) return cudaErrorInvalidResourceHandle;
    if (bytes == 0) return cudaSuccess;
    Range to;
    Range from;
    if (Runtime::get().memory.begin_use(destination, bytes, to) != cudaSuccess) return cudaErrorInvalidValue;
    if (Runtime::get().memory.begin_use(source, bytes, from) != cudaSuccess) {
      Runtime::get().memory.end_use(to);
      return cudaErrorInvalidValue;
    }
    std::vector<std::byte> staged;
    if (!from.region) staged.assign(from.data, from.data + bytes);
    found->push([to, from, staged = std::move(staged)] { run_copy(to, from, staged); });
    if (!to.region) found->drain();
    return cudaSuccess;
  });
}
