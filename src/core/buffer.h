// Buffer: move-only bytes that know their budget. TensorSpan: a view with an element type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "core/budget.h"
#include "core/dtype.h"

namespace strata {

enum class MemorySpace : std::uint8_t { Device, Pinned, Pageable };

// Owns `bytes()` bytes at a kPageBytes-aligned address and the reservation that pays for them. An empty Buffer owns
// nothing. Not thread-safe. The object that knows when the last use completes holds the Buffer.
class Buffer {
 public:
  using Deleter = std::function<void(std::byte*, std::size_t)>;

  Buffer() = default;
  Buffer(std::byte* data, std::size_t bytes, MemorySpace space, Reservation reservation, Deleter deleter);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { reset(); }

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  MemorySpace space() const noexcept { return space_; }
  std::span<std::byte> span() const noexcept { return {data_, bytes_}; }
  explicit operator bool() const noexcept { return data_ != nullptr; }
  void reset() noexcept;

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  MemorySpace space_ = MemorySpace::Pageable;
  Reservation reservation_;
  Deleter deleter_;
};

// Host memory for `bytes` bytes; the mapping and the reservation are rounded up to whole pages, to nothing larger.
// Contents zero; huge pages and NUMA nodes as map_pages() in core/page_mapping.h says. 0 bytes: an empty Buffer.
// Throws: OutOfBudget; IoError when the kernel refuses the mapping.
Buffer allocate_host(Budget& budget, std::size_t bytes, MemoryTag tag);

// A non-owning run of elements. `data` is dereferenced on the host only when it lies in host memory.
struct TensorSpan {
  std::byte* data = nullptr;
  DType dtype = DType::F32;
  std::size_t numel = 0;

  std::size_t bytes() const { return numel * bytes_of(dtype); }
  TensorSpan subspan(std::size_t first, std::size_t count) const {
    return {data + first * bytes_of(dtype), dtype, count};
  }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
};

}  // namespace strata
