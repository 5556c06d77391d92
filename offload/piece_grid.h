// PieceGrid: where a shard's pieces begin and end.
#pragma once

#include <algorithm>
#include <cstdint>

namespace strata::offload {

struct PieceRange {
  std::uint64_t first = 0;  // element
  std::uint64_t numel = 0;
};

// Pieces lie on a grid of one slot each, whatever is at home where; only the piece that the end of the host share falls
// into is cut there in two, so that every piece has one home. Elements before `host_numel` are at home in host memory.
class PieceGrid {
 public:
  PieceGrid(std::uint64_t numel, std::uint64_t host_numel, std::uint64_t full_numel)
      : numel_(numel), host_numel_(host_numel), full_(full_numel) {}

  std::uint32_t pieces() const { return static_cast<std::uint32_t>((numel_ + full_ - 1) / full_ + (cut() ? 1 : 0)); }
  PieceRange range(std::uint32_t piece) const {
    const bool after_cut = cut() && piece > host_numel_ / full_;
    const std::uint64_t square = piece - (after_cut ? 1 : 0);
    const std::uint64_t first = after_cut ? std::max(square * full_, host_numel_) : square * full_;
    std::uint64_t end = std::min((square + 1) * full_, numel_);
    if (cut() && !after_cut) end = std::min(end, host_numel_);
    return {first, end - first};
  }
  // The piece that holds `element`.
  std::uint32_t at(std::uint64_t element) const {
    return static_cast<std::uint32_t>(element / full_ + (cut() && element >= host_numel_ ? 1 : 0));
  }

 private:
  bool cut() const { return host_numel_ % full_ != 0 && host_numel_ < numel_; }

  std::uint64_t numel_;
  std::uint64_t host_numel_;
  std::uint64_t full_;
};

}  // namespace strata::offload
