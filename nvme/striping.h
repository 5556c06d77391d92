// Which path a chunk should lie on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace strata::nvme {

// Keeps count of the bytes on each path and compares them with the paths' weights. A value: copies try things out. One
// owner at a time.
class Striping {
 public:
  // Equal weights. `chunk_bytes` is what one chunk takes.
  Striping(std::size_t paths, std::uint64_t chunk_bytes);

  // Requires: one per path, all above 0, their sum 1.
  void set_weights(std::vector<double> weights) { weights_ = std::move(weights); }
  void add(std::size_t path, std::uint64_t bytes) { bytes_[path] += bytes; }
  void remove(std::size_t path, std::uint64_t bytes) { bytes_[path] -= bytes; }
  std::uint64_t bytes_on(std::size_t path) const { return bytes_[path]; }

  // Where `bytes` more go: to the path that then lacks most, of those with room for them. Nothing: none has room.
  std::optional<std::size_t> path_for_new(std::uint64_t bytes, std::span<const std::uint64_t> room) const;

  // Where a chunk of `from` should move, if anywhere. `from` must hold more than its share by a chunk and by 1/32, and
  // the other path lack a chunk: so a move never overshoots, and small changes of the weights move nothing. The last
  // chunk of a path stays: a path without traffic could not be measured again.
  std::optional<std::size_t> path_for_move(std::size_t from) const;

 private:
  double total() const;
  double lacking(std::size_t path, double total) const {
    return weights_[path] * total - static_cast<double>(bytes_[path]);
  }

  std::uint64_t chunk_bytes_;
  std::vector<double> weights_;
  std::vector<std::uint64_t> bytes_;
};

}  // namespace strata::nvme
