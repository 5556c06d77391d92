#include "nvme/nvme_store.h"

#include <algorithm>
#include <limits>
#include <numeric>
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
  check(options.chunk_bytes >= kPageBytes && options.chunk_bytes % kPageBytes == 0,
        "chunk_bytes: must be a multiple of 4096, got " + std::to_string(options.chunk_bytes));
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

bool shares_drives(const NvmeOptions& options) {
  return options.local_ranks > 1 && !options.job.empty();
}

// All ranks together may have as much in flight as one process alone.
std::unique_ptr<DriveTokens> tokens_for(const NvmeOptions& options, std::size_t path) {
  if (!shares_drives(options)) return nullptr;
  return DriveTokens::join(options.job, drive_of(options.paths[path]), profile_of(options, path).queue_depth);
}

IoQueueOptions queue_options(const NvmeOptions& options, std::size_t path, const SwapFile& file, DriveTokens* tokens) {
  const DeviceProfile profile = profile_of(options, path);
  return {.block_bytes = block_bytes(profile, file),
          .depth = profile.queue_depth,
          .burst_bytes = profile.burst_bytes,
          .tokens = tokens,
          .trace = options.trace,
          .trace_name = "nvme" + std::to_string(path)};
}

// What is known of a path that reads as much as it writes; 0 = nothing.
double known_rate(const DeviceProfile& profile) {
  if (profile.read_rate <= 0 || profile.write_rate <= 0) return 0;
  return 2 / (1 / profile.read_rate + 1 / profile.write_rate);
}

}  // namespace

NvmeStore::Volume::Volume(const NvmeOptions& options, std::size_t path, const BackendFactory& factory, IoMeter& meter)
    : file(options.paths[path], options.mode),
      tokens(tokens_for(options, path)),
      io([&] { return factory(backend_options(options, profile_of(options, path), file)); },
         queue_options(options, path, file, tokens.get()), meter.add_drive(options.paths[path].string())) {}

NvmeStore::NvmeStore(const NvmeOptions& options, Budget& budget, const BackendFactory& factory)
    : budget_(budget),
      now_(options.now),
      owner_(options.local_ranks > 1 ? " of rank " + std::to_string(options.rank) : std::string()) {
  check_options(options);
  std::vector<double> known;
  for (std::size_t path = 0; path < options.paths.size(); ++path) {
    known.push_back(known_rate(profile_of(options, path)));
    volumes_.push_back(std::make_unique<Volume>(options, path, factory, meter_));
    alignment_ = std::max(alignment_, volumes_.back()->file.extent_alignment());
  }
  tracked_ = options.checksums || volumes_.size() > 1;
  // Without either nothing is gained by cutting: a blob is one chunk.
  chunk_bytes_ = tracked_ ? options.chunk_bytes : std::numeric_limits<std::uint64_t>::max() / 2;
  const std::uint64_t padded = align_up(chunk_bytes_, alignment_);
  rates_.emplace(known, 16 * options.chunk_bytes);
  striping_.emplace(volumes_.size(), padded);
  striping_->set_weights(rates_->weights());
  spares_.emplace(files(), padded, budget_);
  for (std::size_t path = 0; path < volumes_.size() && options.checksums; ++path) {
    checkers_.push_back(std::make_unique<ThreadExecutor>("strata-check"));
  }
}

NvmeStore::~NvmeStore() {
  {
    // Follow-ups of completions may go to any path, so all paths must live until the last one.
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return in_flight_ == 0; });
  }
  spares_->stop();
}

std::uint64_t NvmeStore::bytes_on_path(std::size_t index) const {
  const std::lock_guard lock(mutex_);
  return striping_->bytes_on(index);
}

std::vector<SwapFile*> NvmeStore::files() const {
  std::vector<SwapFile*> result;
  for (const std::unique_ptr<Volume>& volume : volumes_) result.push_back(&volume->file);
  return result;
}

std::vector<std::uint64_t> NvmeStore::chunk_sizes(std::uint64_t bytes) const {
  std::vector<std::uint64_t> sizes(bytes / chunk_bytes_, chunk_bytes_);
  if (bytes % chunk_bytes_ > 0) sizes.push_back(bytes % chunk_bytes_);
  return sizes;
}

void NvmeStore::put(Extent& extent, Place place) const {
  const SwapFile& file = volumes_[place.path]->file;
  extent.directory = file.directory().string();
  extent.fd = file.fd();
  extent.offset = place.offset;
  extent.alignment = file.request_alignment();
  extent.volume = place.path;
}

BlobId NvmeStore::create(std::string name, std::uint64_t bytes) {
  const std::lock_guard creating(create_mutex_);
  name += owner_;
  Blob blob;
  blob.bytes = bytes;
  for (const std::uint64_t size : chunk_sizes(bytes)) {
    Extent extent;
    extent.name = name;
    if (bytes > chunk_bytes_) extent.name += ", chunk at " + std::to_string(blob.chunks.size() * chunk_bytes_);
    extent.bytes = size;
    extent.padded_bytes = align_up(size, alignment_);
    blob.chunks.push_back({std::move(extent)});
  }
  std::vector<std::uint64_t> padded;
  for (const Chunk& chunk : blob.chunks) padded.push_back(chunk.extent.padded_bytes);
  // The port does not say what a blob is for; states of the optimizer are by far the most.
  blob.reservation =
      budget_.reserve(std::accumulate(padded.begin(), padded.end(), std::uint64_t{0}), MemoryTag::OptimState);
  const Striping striping = [this] {
    const std::lock_guard lock(mutex_);
    return *striping_;
  }();
  const std::vector<Place> places = take_places(files(), striping, padded, name);
  blob.name = std::move(name);
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < places.size(); ++i) {
    put(blob.chunks[i].extent, places[i]);
    striping_->add(places[i].path, padded[i]);
  }
  blobs_.push_back(std::move(blob));
  return {static_cast<std::uint32_t>(blobs_.size() - 1)};
}

}  // namespace strata::nvme
