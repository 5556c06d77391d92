#include "core/buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/page_mapping.h"

namespace strata {

using namespace literals;

std::byte* map_pages(std::size_t bytes) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw IoError({.errno_value = errno,
                   .op = "mmap",
                   .path = "anonymous memory",
                   .offset_bytes = 0,
                   .bytes = bytes,
                   .hint = "The budget is larger than what the kernel grants: lower it, or raise RLIMIT_AS."});
  }
  // Advice only: a kernel without transparent huge pages answers EINVAL and the mapping works with small ones.
  if (bytes >= 2_MiB && madvise(data, bytes, MADV_HUGEPAGE) != 0) {
    log::debug("no huge pages for " + format_bytes(bytes) + " of host memory (errno " + std::to_string(errno) + ")");
  }
  return static_cast<std::byte*>(data);
}

void unmap_pages(std::byte* data, std::size_t bytes) noexcept {
  if (munmap(data, bytes) != 0) {
    log::error("munmap of " + format_bytes(bytes) + " failed (errno " + std::to_string(errno) + "): memory leaks");
  }
}

Buffer::Buffer(std::byte* data, std::size_t bytes, MemorySpace space, Reservation reservation, Deleter deleter)
    : data_(data), bytes_(bytes), space_(space), reservation_(std::move(reservation)), deleter_(std::move(deleter)) {}

Buffer::Buffer(Buffer&& other) noexcept {
  *this = std::move(other);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  reset();
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  space_ = other.space_;
  reservation_ = std::move(other.reservation_);
  deleter_ = std::exchange(other.deleter_, nullptr);
  return *this;
}

void Buffer::reset() noexcept {
  if (data_ != nullptr && deleter_) deleter_(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
  deleter_ = nullptr;
  // Last: while the memory exists, the budget counts it.
  reservation_.release();
}

Buffer allocate_host(Budget& budget, std::size_t bytes, MemoryTag tag) {
  if (bytes == 0) return Buffer();
  const std::size_t mapped = whole_pages(bytes);
  Reservation reservation = budget.reserve(mapped, tag);
  return Buffer(map_pages(mapped), bytes, MemorySpace::Pageable, std::move(reservation),
                [mapped](std::byte* data, std::size_t) { unmap_pages(data, mapped); });
}

}  // namespace strata
