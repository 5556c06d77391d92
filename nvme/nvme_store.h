// BlobStore on files in one or several directories.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/blob_store.h"
#include "core/budget.h"
#include "core/executor.h"
#include "core/trace.h"
#include "nvme/aligned_io.h"
#include "nvme/backend_factory.h"
#include "nvme/device_profile.h"
#include "nvme/drive_tokens.h"
#include "nvme/extent.h"
#include "nvme/io_meter.h"
#include "nvme/path_rates.h"
#include "nvme/placement.h"
#include "nvme/spare_chunks.h"
#include "nvme/striping.h"
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
  // Of a job whose processes share drives; see docs/nvme.md. Names the job on this machine; empty: it is alone.
  std::string job{};
  std::size_t local_ranks = 1;  // processes of the job on this machine
  std::size_t rank = 0;         // of this one in the job, for messages
  // What tells how long transfers take. Tests replace it.
  std::function<PathRates::Clock::time_point()> now = PathRates::Clock::now;
};

// One swap file, one queue and one I/O thread per path. Swap files have no name once the constructor returns, so
// nothing is left behind. Space for a whole blob, padding included, is taken from the budget and from the file systems
// in create(). See docs/nvme.md.
//
// Several paths: chunks are dealt to them in proportion to their rates. A chunk of full size that is written whole may
// move to a path that has too few; while it does, one more chunk is taken from the budget, if there is room.
// Checksums: a chunk that was written whole is verified when it is read whole; a read that finds other bytes fails with
// CorruptionError. A partial write leaves its chunk unverified until it is written whole again.
class NvmeStore final : public BlobStore {
 public:
  // `budget` must outlive the store. `factory` is replaced by tests that inject faults.
  // Throws: ConfigError or IoError naming the option or the path.
  NvmeStore(const NvmeOptions& options, Budget& budget, const BackendFactory& factory = make_io_backend);
  ~NvmeStore() override;

  // Not from a completion callback: it may wait for I/O that is in flight.
  BlobId create(std::string name, std::uint64_t bytes) override;
  Event read(BlobId blob, std::uint64_t offset_bytes, std::span<std::byte> destination, IoUrgency urgency) override;
  Event write(BlobId blob, std::uint64_t offset_bytes, std::span<const std::byte> source) override;
  BlobStoreStats stats() const override { return meter_.stats(); }

  // How path `index` is used in fact, after any fall-back.
  IoMode mode_of_path(std::size_t index) const { return volumes_[index]->file.mode(); }
  // Bytes of blobs, padding included, that lie on path `index` now.
  std::uint64_t bytes_on_path(std::size_t index) const;

 private:
  struct Volume {
    Volume(const NvmeOptions& options, std::size_t path, const BackendFactory& factory, IoMeter& meter);
    SwapFile file;
    std::unique_ptr<DriveTokens> tokens;  // null: nobody shares the drive
    AlignedIo io;                         // destroyed first: finishes what is in flight
  };
  struct Chunk {
    Extent extent;
    std::size_t in_flight = 0;                // transfers
    std::optional<std::uint64_t> checksum{};  // of its bytes; empty: it is not known what they are
  };
  struct Blob {
    std::string name;
    std::uint64_t bytes = 0;
    Reservation reservation{};  // pays for all chunks, wherever they lie
    std::vector<Chunk> chunks{};
  };
  struct Transfer;

  std::vector<SwapFile*> files() const;
  std::vector<std::uint64_t> chunk_sizes(std::uint64_t bytes) const;
  void put(Extent& extent, Place place) const;
  Blob& blob_with(BlobId blob, std::uint64_t offset, std::uint64_t bytes);
  Event transfer(BlobId blob, const IoTransfer& whole);
  Event plain(const IoTransfer& part);

  Event start(Chunk& chunk, const IoTransfer& part);
  void move_to_better_path(Chunk& chunk);
  void send(const std::shared_ptr<Transfer>& transfer);
  void landed(const std::shared_ptr<Transfer>& transfer, std::exception_ptr error);
  void finish(const std::shared_ptr<Transfer>& transfer, std::exception_ptr error);
  static std::exception_ptr verify(const Transfer& transfer);

  Budget& budget_;
  const std::function<PathRates::Clock::time_point()> now_;
  const std::string owner_;  // in names of blobs, when there are several ranks
  std::mutex create_mutex_;  // one create() at a time; never taken together with I/O
  // Never held over a system call: completions take it, and some system calls wait for completions.
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  std::deque<Blob> blobs_;            // guarded by mutex_; a deque, because transfers in flight point at chunks
  std::size_t in_flight_ = 0;         // guarded by mutex_; of start(), their follow-ups included
  std::optional<Striping> striping_;  // guarded by mutex_
  std::optional<PathRates> rates_;    // guarded by mutex_
  IoMeter meter_;
  // One per path compute checksums; none without checksums. Outlive the I/O threads, which post to them.
  std::vector<std::unique_ptr<ThreadExecutor>> checkers_;
  std::vector<std::unique_ptr<Volume>> volumes_;  // destroyed before what is above
  std::uint64_t alignment_ = 1;                   // of the places of chunks: what suits every path
  std::uint64_t chunk_bytes_ = 0;
  bool tracked_ = false;  // each transfer is followed to its end: several paths, or checksums
  std::optional<SpareChunks> spares_;
};

}  // namespace strata::nvme
