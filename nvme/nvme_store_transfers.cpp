// What NvmeStore does with a read or a write, chunk by chunk.
#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "core/error.h"
#include "nvme/checksum.h"
#include "nvme/nvme_store.h"

namespace strata::nvme {
namespace {

std::string hexadecimal(std::uint64_t value) {
  std::array<char, 19> text{};
  (void)std::snprintf(text.data(), text.size(), "0x%016llx", static_cast<unsigned long long>(value));
  return text.data();
}

}  // namespace

// One transfer of one chunk, followed to its end.
struct NvmeStore::Transfer {
  Chunk* chunk = nullptr;
  IoTransfer what;
  bool whole = false;                       // all bytes of the chunk
  std::optional<std::uint64_t> checksum{};  // a whole write: of what is written; a whole read: expected
  EventSource source{};
};

NvmeStore::Blob& NvmeStore::blob_with(BlobId id, std::uint64_t offset, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  STRATA_EXPECTS(id.index < blobs_.size(), "no blob " + std::to_string(id.index));
  Blob& blob = blobs_[id.index];
  STRATA_EXPECTS(offset <= blob.bytes && bytes <= blob.bytes - offset,
                 "blob " + blob.name + " has " + std::to_string(blob.bytes) + " bytes; asked for " +
                     std::to_string(bytes) + " at " + std::to_string(offset));
  return blob;
}

Event NvmeStore::read(BlobId blob, std::uint64_t offset_bytes, std::span<std::byte> destination, IoUrgency urgency) {
  return transfer(blob, {IoOp::Read, nullptr, offset_bytes, destination.data(), destination.size(), urgency});
}

Event NvmeStore::write(BlobId blob, std::uint64_t offset_bytes, std::span<const std::byte> source) {
  // The one place that drops const: a transfer has one pointer for both directions, and writes only read it.
  std::byte* const data = const_cast<std::byte*>(source.data());
  return transfer(blob, {IoOp::Write, nullptr, offset_bytes, data, source.size(), IoUrgency::Demand});
}

Event NvmeStore::transfer(BlobId id, const IoTransfer& whole) {
  Blob& blob = blob_with(id, whole.offset, whole.bytes);
  meter_.count_bytes(whole.op, whole.bytes);
  std::vector<Event> parts;
  for (std::uint64_t done = 0; done < whole.bytes;) {
    const std::uint64_t at = whole.offset + done;
    Chunk& chunk = blob.chunks[at / chunk_bytes_];
    IoTransfer part = whole;
    part.extent = &chunk.extent;
    part.offset = at % chunk_bytes_;
    part.data = whole.data + done;
    part.bytes = std::min(whole.bytes - done, chunk.extent.bytes - part.offset);
    parts.push_back(tracked_ ? start(chunk, part) : plain(part));
    done += part.bytes;
  }
  return when_all(parts);
}

Event NvmeStore::plain(const IoTransfer& part) {
  AlignedIo& io = volumes_[part.extent->volume]->io;
  if (part.op == IoOp::Read) return io.read(*part.extent, part.offset, {part.data, part.bytes}, part.urgency);
  return io.write(*part.extent, part.offset, {part.data, part.bytes});
}

Event NvmeStore::start(Chunk& chunk, const IoTransfer& part) {
  auto transfer = std::make_shared<Transfer>();
  transfer->chunk = &chunk;
  transfer->what = part;
  transfer->source.submit();
  Event event = transfer->source.event();
  const bool write = part.op == IoOp::Write;
  {
    const std::lock_guard lock(mutex_);
    transfer->whole = part.bytes == chunk.extent.bytes;
    if (write && transfer->whole) move_to_better_path(chunk);
    if (!write && transfer->whole) transfer->checksum = chunk.checksum;
    if (write) chunk.checksum.reset();
    ++chunk.in_flight;
    ++in_flight_;
  }
  if (write && transfer->whole && !checkers_.empty()) {
    // Not here: this may be an I/O thread, or the caller may hold a lock.
    checkers_[chunk.extent.volume]->post([this, transfer] {
      transfer->checksum = checksum({transfer->what.data, transfer->what.bytes});
      send(transfer);
    });
  } else {
    send(transfer);
  }
  return event;
}

// Requires: mutex_ is held, and the chunk is about to be written whole, so what it holds is not needed any more.
void NvmeStore::move_to_better_path(Chunk& chunk) {
  Extent& extent = chunk.extent;
  // A request in flight here would break the port's rule, but must not hit whoever gets the place next.
  if (chunk.in_flight > 0 || extent.bytes != chunk_bytes_) return;
  const std::optional<std::size_t> path = striping_->path_for_move(extent.volume);
  if (!path) return;
  const std::optional<Place> place = spares_->exchange({extent.volume, extent.offset}, *path);
  if (!place) return;
  striping_->remove(extent.volume, extent.padded_bytes);
  put(extent, *place);
  striping_->add(extent.volume, extent.padded_bytes);
}

void NvmeStore::send(const std::shared_ptr<Transfer>& transfer) {
  {
    const std::lock_guard lock(mutex_);
    rates_->begin(transfer->chunk->extent.volume, now_());
  }
  try {
    plain(transfer->what).on_complete([this, transfer](const std::exception_ptr& error) { landed(transfer, error); });
  } catch (...) {  // no memory for a bounce buffer
    landed(transfer, std::current_exception());
  }
}

// On the I/O thread, which must not stay here long: its queue would run dry.
void NvmeStore::landed(const std::shared_ptr<Transfer>& transfer, std::exception_ptr error) {
  const IoTransfer& what = transfer->what;
  const std::size_t path = what.extent->volume;
  {
    const std::lock_guard lock(mutex_);
    if (rates_->end(path, error ? 0 : what.bytes, now_())) striping_->set_weights(rates_->weights());
  }
  if (!error && what.op == IoOp::Read && transfer->checksum) {
    checkers_[path]->post([this, transfer] { finish(transfer, verify(*transfer)); });
  } else {
    finish(transfer, std::move(error));
  }
}

std::exception_ptr NvmeStore::verify(const Transfer& transfer) {
  const std::uint64_t found = checksum({transfer.what.data, transfer.what.bytes});
  if (found == *transfer.checksum) return nullptr;
  const Extent& extent = *transfer.what.extent;
  return std::make_exception_ptr(CorruptionError(
      "what was read is not what was written: " + extent.directory + ", offset " + std::to_string(extent.offset) +
      " of the swap file, " + std::to_string(extent.bytes) + " bytes of blob " + extent.name + ": checksum expected " +
      hexadecimal(*transfer.checksum) + ", found " + hexadecimal(found) +
      "; the drive, its cable or the memory may be failing; resume from a checkpoint, not from this run"));
}

void NvmeStore::finish(const std::shared_ptr<Transfer>& transfer, std::exception_ptr error) {
  Chunk& chunk = *transfer->chunk;
  {
    const std::lock_guard lock(mutex_);
    --chunk.in_flight;
    // Others in flight would break the port's rule: then nobody knows what the chunk holds.
    if (transfer->what.op == IoOp::Write && transfer->whole && !error && chunk.in_flight == 0) {
      chunk.checksum = transfer->checksum;
    }
  }
  if (error) {
    transfer->source.fail(std::move(error));
  } else {
    transfer->source.complete();
  }
  const std::lock_guard lock(mutex_);
  if (--in_flight_ == 0) idle_.notify_all();
}

}  // namespace strata::nvme
