#include "nvme/striping.h"

#include <algorithm>
#include <numeric>

namespace strata::nvme {

Striping::Striping(std::size_t paths, std::uint64_t chunk_bytes)
    : chunk_bytes_(chunk_bytes), weights_(paths, 1.0 / static_cast<double>(paths)), bytes_(paths, 0) {}

double Striping::total() const {
  return static_cast<double>(std::accumulate(bytes_.begin(), bytes_.end(), std::uint64_t{0}));
}

std::optional<std::size_t> Striping::path_for_new(std::uint64_t bytes, std::span<const std::uint64_t> room) const {
  const double after = total() + static_cast<double>(bytes);
  std::optional<std::size_t> best;
  for (std::size_t path = 0; path < bytes_.size(); ++path) {
    if (room[path] < bytes) continue;
    if (!best || lacking(path, after) > lacking(*best, after)) best = path;
  }
  return best;
}

std::optional<std::size_t> Striping::path_for_move(std::size_t from) const {
  const double all = total();
  const auto chunk = static_cast<double>(chunk_bytes_);
  const double too_much = -lacking(from, all);
  if (too_much < std::max(chunk, weights_[from] * all / 32)) return std::nullopt;
  if (bytes_[from] < 2 * chunk_bytes_) return std::nullopt;
  std::optional<std::size_t> best;
  for (std::size_t path = 0; path < bytes_.size(); ++path) {
    if (path == from || lacking(path, all) < chunk) continue;
    if (!best || lacking(path, all) > lacking(*best, all)) best = path;
  }
  return best;
}

}  // namespace strata::nvme
