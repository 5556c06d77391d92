#include "nvme/placement.h"

#include <cerrno>
#include <limits>
#include <numeric>
#include <optional>

#include "core/error.h"
#include "nvme/free_space.h"

namespace strata::nvme {
namespace {

// The path of each chunk; nothing when they do not fit into `room`, the free bytes of each path.
std::optional<std::vector<std::size_t>> deal(Striping striping, std::span<const std::uint64_t> sizes,
                                             std::vector<std::uint64_t> room) {
  std::vector<std::size_t> dealt;
  for (const std::uint64_t bytes : sizes) {
    const std::optional<std::size_t> path = striping.path_for_new(bytes, room);
    if (!path) return std::nullopt;
    room[*path] -= bytes;
    striping.add(*path, bytes);
    dealt.push_back(*path);
  }
  return dealt;
}

IoError no_space(std::span<SwapFile* const> files, std::uint64_t need, const std::string& blob_name) {
  std::vector<DirectoryOfFile> directories;
  for (const SwapFile* file : files) directories.push_back({file->fd(), file->directory().string()});
  return IoError({ENOSPC, "reserve", "nvme.paths (blob " + blob_name + ")", 0, need, no_space_hint(directories, need)});
}

// Space at the end of each file, given back unless it is kept.
class Runs {
 public:
  explicit Runs(std::span<SwapFile* const> files) : files_(files), begin_(files.size(), 0), bytes_(files.size(), 0) {}
  ~Runs() {
    for (std::size_t path = 0; path < files_.size(); ++path) {
      // Fails where the space cannot be given back one by one: it is lost until the files are closed.
      if (bytes_[path] > 0) (void)files_[path]->give_back(begin_[path], bytes_[path]);
    }
  }
  Runs(const Runs&) = delete;

  void take(std::size_t path, std::uint64_t bytes, const std::string& blob_name) {
    begin_[path] = files_[path]->take(bytes, blob_name);
    bytes_[path] = bytes;
  }
  std::vector<std::uint64_t> keep() {
    bytes_.assign(files_.size(), 0);
    return begin_;
  }

 private:
  std::span<SwapFile* const> files_;
  std::vector<std::uint64_t> begin_;
  std::vector<std::uint64_t> bytes_;
};

// Where each run begins. Nothing when a path has less room than was believed; `room` is lower then.
std::optional<std::vector<std::uint64_t>> take_runs(std::span<SwapFile* const> files,
                                                    const std::vector<std::uint64_t>& bytes,
                                                    std::vector<std::uint64_t>& room, const std::string& blob_name) {
  Runs runs(files);
  for (std::size_t path = 0; path < files.size(); ++path) {
    if (bytes[path] == 0) continue;
    try {
      runs.take(path, bytes[path], blob_name);
    } catch (const IoError& error) {
      const int code = error.failure().errno_value;
      if (files.size() == 1 || (code != ENOSPC && code != EDQUOT)) throw;
      room[path] = bytes[path] / 2;
      return std::nullopt;
    }
  }
  return runs.keep();
}

}  // namespace

std::vector<Place> take_places(std::span<SwapFile* const> files, const Striping& striping,
                               std::span<const std::uint64_t> sizes, const std::string& blob_name) {
  // With one path there is nothing to choose, and the file says best what is wrong.
  std::vector<std::uint64_t> room(files.size(), std::numeric_limits<std::uint64_t>::max());
  for (std::size_t path = 0; path < files.size() && files.size() > 1; ++path) {
    room[path] = free_bytes(files[path]->fd()).value_or(room[path]);
  }
  for (;;) {  // ends: each repetition halves the room of a path
    const std::optional<std::vector<std::size_t>> dealt = deal(striping, sizes, room);
    if (!dealt) throw no_space(files, std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0}), blob_name);
    std::vector<std::uint64_t> bytes(files.size(), 0);
    for (std::size_t i = 0; i < sizes.size(); ++i) bytes[(*dealt)[i]] += sizes[i];
    std::optional<std::vector<std::uint64_t>> next = take_runs(files, bytes, room, blob_name);
    if (!next) continue;
    std::vector<Place> places;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const std::size_t path = (*dealt)[i];
      places.push_back({path, (*next)[path]});
      (*next)[path] += sizes[i];
    }
    return places;
  }
}

}  // namespace strata::nvme
