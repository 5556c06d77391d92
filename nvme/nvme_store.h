// BlobStore on files in one or several directories.
#pragma once

#include <cstddef>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/blob_store.h"
#include "core/budget.h"
#include "core/trace.h"
#include "nvme/aligned_io.h"
#include "nvme/backend_factory.h"
#include "nvme/device_profile.h"
#include "nvme/extent.h"
#include "nvme/io_meter.h"
#include "nvme/swap_file.h"

namespace strata::nvme {

struct NvmeOptions {
  std::vector<std::filesystem::path> paths{};  // at least one; one per drive
  std::vector<DeviceProfile> profiles{};       // of the paths, in their order; empty: nothing is known of them
  std::optional<std::size_t> block_bytes{};    // largest request: a multiple of 4096, at most 1 GiB; else the profile's
  std::optional<unsigned> queue_depth{};       // requests in flight per path: 1 .. 4096; else the profile's
  BackendKind backend = BackendKind::Auto;
  unsigned io_threads = 4;  // per path, of the thread backend: 1 .. 256
  IoMode mode = IoMode::Direct;
  // Blobs are cut into chunks of this size: the unit of striping and of checksums. A multiple of 4096.
  std::uint64_t chunk_bytes = std::uint64_t{4} << 20;
  bool checksums = false;                       // of every chunk that was written whole, examined when it is read whole
  Trace* trace = nullptr;                       // records each request; must outlive the store; null = none
  std::vector<std::span<std::byte>> regions{};  // memory to register with io_uring; must outlive the store
};

// One swap file, one queue and one I/O thread per path; blob k lies on path k modulo their number. Swap files have no
// name once the constructor returns, so nothing is left behind. Every extent is reserved from the budget, padding
// included. See docs/nvme.md.
class NvmeStore final : public BlobStore {
 public:
  // `budget` must outlive the store. `factory` is replaced by tests that inject faults.
  // Throws: ConfigError or IoError naming the option or the path.
  NvmeStore(const NvmeOptions& options, Budget& budget, const BackendFactory& factory = make_io_backend);

  BlobId create(std::string name, std::uint64_t bytes) override;
  Event read(BlobId blob, std::uint64_t offset_bytes, std::span<std::byte> destination, IoUrgency urgency) override;
  Event write(BlobId blob, std::uint64_t offset_bytes, std::span<const std::byte> source) override;
  BlobStoreStats stats() const override { return meter_.stats(); }

  // How path `index` is used in fact, after any fall-back.
  IoMode mode_of_path(std::size_t index) const { return volumes_[index]->file.mode(); }

 private:
  struct Volume {
    Volume(const NvmeOptions& options, std::size_t path, const BackendFactory& factory, IoMeter& meter);
    SwapFile file;
    AlignedIo io;  // destroyed first: finishes what is in flight
  };
  const Extent& extent_of(BlobId blob, std::uint64_t offset, std::uint64_t bytes) const;

  Budget& budget_;
  mutable std::mutex mutex_;
  std::deque<Extent> extents_;  // guarded by mutex_; a deque, because requests in flight point at its elements
  IoMeter meter_;
  std::vector<std::unique_ptr<Volume>> volumes_;  // destroyed first
};

}  // namespace strata::nvme
