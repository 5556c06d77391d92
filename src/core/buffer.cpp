#include "core/buffer.h"

#include <utility>

#include "core/page_mapping.h"

namespace strata {

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
