#include "nvme/nvme_store.h"

#include <algorithm>
#include <utility>

#include "core/bytes.h"
#include "core/error.h"

namespace strata::nvme {
namespace {

void check(bool ok, const std::string& message) {
  if (!ok) throw ConfigError("nvme." + message);
}

void check_options(const NvmeOptions& options) {
  check(!options.paths.empty(), "paths: at least one directory is needed");
  check(options.block_bytes >= kPageBytes && options.block_bytes % kPageBytes == 0 &&
            options.block_bytes <= kMaxRequestBytes,
        "block_size: must be a multiple of 4096 bytes from 4096 to 1 GiB, got " + std::to_string(options.block_bytes));
  check(options.queue_depth >= 1 && options.queue_depth <= 4096,
        "queue_depth: must be 1 to 4096, got " + std::to_string(options.queue_depth));
  check(options.io_threads >= 1 && options.io_threads <= 256,
        "io_threads: must be 1 to 256, got " + std::to_string(options.io_threads));
}

BackendOptions backend_options(const NvmeOptions& options, const SwapFile& file) {
  BackendOptions backend;
  backend.kind = options.backend;
  backend.threads = options.io_threads;
  backend.uring.entries = options.queue_depth;
  backend.uring.files = {file.fd()};
  backend.uring.regions = options.regions;
  return backend;
}

// Requests must stay aligned when a transfer is cut.
std::size_t block_bytes(const NvmeOptions& options, const SwapFile& file) {
  return std::max<std::size_t>(options.block_bytes / file.extent_alignment() * file.extent_alignment(),
                               file.extent_alignment());
}

}  // namespace

NvmeStore::Volume::Volume(const std::filesystem::path& path, const NvmeOptions& options, const BackendFactory& factory,
                          IoMeter& meter)
    : file(path, options.mode),
      io([&] { return factory(backend_options(options, file)); }, {block_bytes(options, file), options.queue_depth},
         meter) {}

NvmeStore::NvmeStore(const NvmeOptions& options, Budget& budget, const BackendFactory& factory) : budget_(budget) {
  check_options(options);
  for (const std::filesystem::path& path : options.paths) {
    volumes_.push_back(std::make_unique<Volume>(path, options, factory, meter_));
  }
}

BlobId NvmeStore::create(std::string name, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::size_t volume = extents_.size() % volumes_.size();
  SwapFile& file = volumes_[volume]->file;
  Extent extent;
  extent.padded_bytes = align_up(bytes, file.extent_alignment());
  // The port does not say what a blob is for; states of the optimizer are by far the most.
  extent.reservation = budget_.reserve(extent.padded_bytes, MemoryTag::OptimState);
  extent.offset = file.grow(extent.padded_bytes, name);
  extent.name = std::move(name);
  extent.directory = file.directory().string();
  extent.fd = file.fd();
  extent.bytes = bytes;
  extent.alignment = file.request_alignment();
  extent.volume = volume;
  extents_.push_back(std::move(extent));
  return {static_cast<std::uint32_t>(extents_.size() - 1)};
}

const Extent& NvmeStore::extent_of(BlobId blob, std::uint64_t offset, std::uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  STRATA_EXPECTS(blob.index < extents_.size(), "no blob " + std::to_string(blob.index));
  const Extent& extent = extents_[blob.index];
  STRATA_EXPECTS(offset <= extent.bytes && bytes <= extent.bytes - offset,
                 "blob " + extent.name + " has " + std::to_string(extent.bytes) + " bytes; asked for " +
                     std::to_string(bytes) + " at " + std::to_string(offset));
  return extent;
}

Event NvmeStore::read(BlobId blob, std::uint64_t offset_bytes, std::span<std::byte> destination, IoUrgency urgency) {
  const Extent& extent = extent_of(blob, offset_bytes, destination.size());
  meter_.count_bytes(IoOp::Read, destination.size());
  return volumes_[extent.volume]->io.read(extent, offset_bytes, destination, urgency);
}

Event NvmeStore::write(BlobId blob, std::uint64_t offset_bytes, std::span<const std::byte> source) {
  const Extent& extent = extent_of(blob, offset_bytes, source.size());
  meter_.count_bytes(IoOp::Write, source.size());
  return volumes_[extent.volume]->io.write(extent, offset_bytes, source);
}

}  // namespace strata::nvme
