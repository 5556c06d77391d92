// FlatLayout: a group's parameters side by side in one buffer, so that all-gather lands in place and reduce-scatter
// reads in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/shard_optimizer.h"
#include "zero/group_decl.h"

namespace strata::zero {

// Where one parameter lies, in elements from the start of the flat buffer.
struct ParamSlot {
  std::size_t offset = 0;
  std::size_t numel = 0;
};

// Offsets do not depend on the element type, so that the norm's blocks are the same in every type. [Note: flat padding]
// Gaps between parameters and the tail hold zeros in every tensor of the group (parameter, gradient, state).
class FlatLayout {
 public:
  // Parameters start at multiples of this many elements: a block of 8-bit states, so that none holds parts of two
  // parameters and a checkpoint can carry each parameter's blocks by itself.
  static constexpr std::size_t kParamAlignment = 256;
  // One rank's shard is a multiple of this many elements: one 4 KiB page in 16-bit types, so extents need no partial
  // page.
  static constexpr std::size_t kShardAlignment = 2048;

  // `row_parts`: that a row can be cut into, of equal size. Requires: world > 0, row_parts > 0; no dimension is
  // negative.
  FlatLayout(const GroupDecl& group, std::size_t world, std::size_t row_parts = 1);

  const GroupDecl& group() const { return group_; }
  const std::vector<ParamSlot>& params() const { return params_; }
  std::size_t world() const { return world_; }
  std::size_t numel() const { return shard_numel_ * world_; }  // padding included
  std::size_t shard_numel() const { return shard_numel_; }
  // Elements that belong to parameters; the rest is padding.
  std::size_t param_numel() const { return param_numel_; }

  // The parts of parameters inside elements [first, first + count) of the flat buffer; offsets are relative to `first`.
  std::vector<Segment> segments(std::size_t first, std::size_t count) const;
  // Calls fn(offset, count) for each run of padding, in order.
  template <typename Fn>
  void for_each_gap(Fn&& fn) const {
    std::size_t end = 0;
    for (const ParamSlot& param : params_) {
      if (param.offset > end) fn(end, param.offset - end);
      end = param.offset + param.numel;
    }
    if (numel() > end) fn(end, numel() - end);
  }

 private:
  GroupDecl group_;
  std::vector<ParamSlot> params_;
  std::size_t world_;
  std::size_t shard_numel_ = 0;
  std::size_t param_numel_ = 0;
};

}  // namespace strata::zero
