#include "nvme/aligned_io.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "core/bytes.h"

namespace strata::nvme {
namespace {

struct FreeBytes {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using AlignedBytes = std::unique_ptr<std::byte, FreeBytes>;

AlignedBytes allocate_aligned(std::uint64_t alignment, std::uint64_t bytes) {
  AlignedBytes memory(static_cast<std::byte*>(std::aligned_alloc(alignment, bytes)));
  if (!memory) throw std::bad_alloc();
  return memory;
}

bool aligned(const std::byte* address, std::uint64_t alignment) {
  return reinterpret_cast<std::uintptr_t>(address) % alignment == 0;
}

IoTransfer part_of(const IoTransfer& whole, std::uint64_t begin, std::uint64_t bytes) {
  IoTransfer part = whole;
  part.offset += begin;
  part.data += begin;
  part.bytes = bytes;
  return part;
}

}  // namespace

void BlockLocks::acquire(std::uint64_t block, std::function<void()> fn) {
  {
    const std::lock_guard lock(mutex_);
    const auto [entry, fresh] = taken_.try_emplace(block);
    if (!fresh) {
      entry->second.push_back(std::move(fn));
      return;
    }
  }
  fn();
}

void BlockLocks::release(std::uint64_t block) {
  std::function<void()> next;
  {
    const std::lock_guard lock(mutex_);
    const auto entry = taken_.find(block);
    if (entry->second.empty()) {
      taken_.erase(entry);
      return;
    }
    next = std::move(entry->second.front());
    entry->second.pop_front();
  }
  next();
}

// Moves one part chunk after chunk through a buffer of its own. Each step starts one request and is continued by the
// request's completion; the object lives in those continuations.
class AlignedIo::Bounce : public std::enable_shared_from_this<Bounce> {
 public:
  Bounce(AlignedIo& io, const IoTransfer& part)
      : io_(io),
        left_(part),
        alignment_(part.extent->alignment),
        buffer_(allocate_aligned(
            alignment_, std::min(std::max(kBounceBytes, alignment_), align_up(part.bytes, alignment_) + alignment_))) {
    source_.submit();
  }

  Event start() {
    Event event = source_.event();
    step();
    return event;
  }

 private:
  using Next = void (Bounce::*)();

  void step();
  void read_covering_blocks();
  void write_whole_blocks();
  void write_within_block();
  void patch_block();
  void request(IoOp op, std::uint64_t bytes, Next next);
  void copy_out();
  void advance();
  void unlock_and_advance();
  void fail(const std::exception_ptr& error);

  AlignedIo& io_;
  IoTransfer left_;  // what is still to be moved
  const std::uint64_t alignment_;
  const AlignedBytes buffer_;
  std::uint64_t skip_ = 0;   // bytes of the buffer before the caller's first byte
  std::uint64_t chunk_ = 0;  // the caller's bytes that are under way
  bool locked_ = false;      // holds the lock of the block at left_.offset - skip_
  EventSource source_;
};

void AlignedIo::Bounce::step() {
  skip_ = left_.offset % alignment_;
  if (left_.op == IoOp::Read) {
    read_covering_blocks();
  } else if (skip_ == 0 && left_.bytes >= alignment_) {
    write_whole_blocks();
  } else {
    write_within_block();
  }
}

void AlignedIo::Bounce::read_covering_blocks() {
  const std::uint64_t limit = std::max(kBounceBytes / alignment_, std::uint64_t{1}) * alignment_;
  const std::uint64_t covering = std::min(align_up(skip_ + left_.bytes, alignment_), limit);
  chunk_ = std::min(left_.bytes, covering - skip_);
  request(IoOp::Read, covering, &Bounce::copy_out);
}

void AlignedIo::Bounce::copy_out() {
  std::memcpy(left_.data, buffer_.get() + skip_, chunk_);
  advance();
}

void AlignedIo::Bounce::write_whole_blocks() {
  const std::uint64_t limit = std::max(kBounceBytes / alignment_, std::uint64_t{1}) * alignment_;
  chunk_ = std::min(left_.bytes / alignment_ * alignment_, limit);
  std::memcpy(buffer_.get(), left_.data, chunk_);
  request(IoOp::Write, chunk_, &Bounce::advance);
}

void AlignedIo::Bounce::write_within_block() {
  chunk_ = std::min(left_.bytes, alignment_ - skip_);
  if (skip_ == 0 && left_.offset + chunk_ == left_.extent->bytes) {
    // Behind the end of the blob lies only padding, so nobody else can own a byte of this block.
    std::memset(buffer_.get(), 0, alignment_);
    std::memcpy(buffer_.get(), left_.data, chunk_);
    request(IoOp::Write, alignment_, &Bounce::advance);
    return;
  }
  io_.locks_.acquire(left_.extent->offset + left_.offset - skip_, [self = shared_from_this()] {
    self->locked_ = true;
    self->request(IoOp::Read, self->alignment_, &Bounce::patch_block);
  });
}

void AlignedIo::Bounce::patch_block() {
  std::memcpy(buffer_.get() + skip_, left_.data, chunk_);
  request(IoOp::Write, alignment_, &Bounce::unlock_and_advance);
}

void AlignedIo::Bounce::unlock_and_advance() {
  locked_ = false;
  io_.locks_.release(left_.extent->offset + left_.offset - skip_);
  advance();
}

void AlignedIo::Bounce::advance() {
  left_ = part_of(left_, chunk_, left_.bytes - chunk_);
  if (left_.bytes > 0) {
    step();
  } else {
    source_.complete();
  }
}

void AlignedIo::Bounce::request(IoOp op, std::uint64_t bytes, Next next) {
  IoTransfer transfer = left_;
  transfer.op = op;
  transfer.offset -= skip_;
  transfer.data = buffer_.get();
  transfer.bytes = bytes;
  io_.queue_.submit(transfer).on_complete([self = shared_from_this(), next](const std::exception_ptr& error) {
    if (error) {
      self->fail(error);
    } else {
      (self.get()->*next)();
    }
  });
}

void AlignedIo::Bounce::fail(const std::exception_ptr& error) {
  if (locked_) io_.locks_.release(left_.extent->offset + left_.offset - skip_);
  source_.fail(error);
}

Event AlignedIo::bounce(const IoTransfer& part) {
  return std::make_shared<Bounce>(*this, part)->start();
}

Event AlignedIo::transfer(const IoTransfer& whole) {
  const std::uint64_t alignment = whole.extent->alignment;
  const std::uint64_t head = std::min(whole.bytes, align_up(whole.offset, alignment) - whole.offset);
  const std::uint64_t middle = (whole.bytes - head) / alignment * alignment;
  const std::uint64_t tail = whole.bytes - head - middle;
  if (middle == 0 || !aligned(whole.data + head, alignment)) return whole.bytes == 0 ? Event() : bounce(whole);
  if (head == 0 && tail == 0) return queue_.submit(whole);
  std::vector<Event> parts{queue_.submit(part_of(whole, head, middle))};
  if (head > 0) parts.push_back(bounce(part_of(whole, 0, head)));
  if (tail > 0) parts.push_back(bounce(part_of(whole, head + middle, tail)));
  return when_all(parts);
}

Event AlignedIo::read(const Extent& extent, std::uint64_t offset, std::span<std::byte> destination, IoUrgency urgency) {
  return transfer({IoOp::Read, &extent, offset, destination.data(), destination.size(), urgency});
}

Event AlignedIo::write(const Extent& extent, std::uint64_t offset, std::span<const std::byte> source) {
  // The one place that drops const: a request has one pointer for both directions, and writes only read it.
  return transfer(
      {IoOp::Write, &extent, offset, const_cast<std::byte*>(source.data()), source.size(), IoUrgency::Demand});
}

}  // namespace strata::nvme
