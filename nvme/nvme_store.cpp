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
  check(options.profiles.empty() || options.profiles.size() == options.paths.size(), "profiles: one per path, or none");
  const std::size_t block = options.block_bytes.value_or(kPageBytes);
  check(block >= kPageBytes && block % kPageBytes == 0 && block <= kMaxRequestBytes,
        "block_size: must be a multiple of 4096 bytes from 4096 to 1 GiB, got " + std::to_string(block));
  const unsigned depth = options.queue_depth.value_or(1);
  check(depth >= 1 && depth <= 4096, "queue_depth: must be 1 to 4096, got " + std::to_string(depth));
  check(options.io_threads >= 1 && options.io_threads <= 256,
        "io_threads: must be 1 to 256, got " + std::to_string(options.io_threads));
}

// The profile of a path with what the options fix.
DeviceProfile profile_of(const NvmeOptions& options, std::size_t path) {
  DeviceProfile profile = options.profiles.empty() ? DeviceProfile{} : options.profiles[path];
  profile.block_bytes = options.block_bytes.value_or(profile.block_bytes);
  profile.queue_depth = options.queue_depth.value_or(profile.queue_depth);
  return profile;
}

BackendOptions backend_options(const NvmeOptions& options, const DeviceProfile& profile, const SwapFile& file) {
  BackendOptions backend;
  backend.kind = options.backend;
  backend.threads = options.io_threads;
  backend.uring.mode = profile.ring;
  backend.uring.entries = profile.queue_depth;
  backend.uring.files = {file.fd()};
  backend.uring.regions = options.regions;
  return backend;
}

// Requests must stay aligned when a transfer is cut.
std::size_t block_bytes(const DeviceProfile& profile, const SwapFile& file) {
  return std::max<std::size_t>(profile.block_bytes / file.extent_alignment() * file.extent_alignment(),
                               file.extent_alignment());
}

IoQueueOptions queue_options(const NvmeOptions& options, std::size_t path, const SwapFile& file) {
  const DeviceProfile profile = profile_of(options, path);
  return {.block_bytes = block_bytes(profile, file),
          .depth = profile.queue_depth,
          .burst_bytes = profile.burst_bytes,
          .trace = options.trace,
          .trace_name = "nvme" + std::to_string(path)};
}

}  // namespace

NvmeStore::Volume::Volume(const NvmeOptions& options, std::size_t path, const BackendFactory& factory, IoMeter& meter)
    : file(options.paths[path], options.mode),
      io([&] { return factory(backend_options(options, profile_of(options, path), file)); },
         queue_options(options, path, file), meter.add_drive(options.paths[path].string())) {}

NvmeStore::NvmeStore(const NvmeOptions& options, Budget& budget, const BackendFactory& factory) : budget_(budget) {
  check_options(options);
  for (std::size_t path = 0; path < options.paths.size(); ++path) {
    volumes_.push_back(std::make_unique<Volume>(options, path, factory, meter_));
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
