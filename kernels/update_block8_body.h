// The fused optimizer step for moments in 8 bits. A warp owns a block of 256 elements, 8 per lane, whose moments stay
// in registers while the warp finds the block's largest. C++17, for device and host.
#pragma once

#include <cstdint>

#include "kernels/update_body.h"

namespace strata::kernels {

template <typename Storage>
struct UpdateBlock8Body {
  static constexpr int kGroup = group_size(sizeof(typename Storage::Master));
  static constexpr int kGroups = 8 / kGroup;  // of a lane in a block, one behind all lanes' other

  // A lane's group in a block: its codes pass through whole, padding included.
  struct LaneGroup {
    GroupPlace place;
    unsigned members = 0;
    float moments[2][kGroup];
  };
  struct Lane {
    LaneGroup groups[kGroups];
    int interval = 0;
    bool active = false;  // the block has an updated element; the same for the whole warp
  };

  UpdateRun run;
  GroupShape<kGroup> shape;
  int moments;

  explicit UpdateBlock8Body(const UpdateRun& of)
      : run(of),
        // Blocks begin at every 256th element, so all are aligned as the first is.
        shape(groups_from<kGroup>(of.numel, 0,
                                  aligned_from<kGroup>({{of.param, sizeof(typename Storage::Param)},
                                                        {of.grad, grad_bytes(of)},
                                                        {of.master, sizeof(typename Storage::Master)},
                                                        {of.moments[0], 1},
                                                        {of.moments[1], 1}},
                                                       0))),
        moments(static_cast<int>(moments_of(of.kind))) {}

  std::int64_t blocks() const { return (run.numel + kBlock - 1) / kBlock; }

  STRATA_HOST_DEVICE Largest share(std::int64_t block, int lane, Lane& state) const {
    const std::int64_t begin = block * kBlock;
    const std::int64_t end = begin + kBlock < run.numel ? begin + kBlock : run.numel;
    state.active = any_updated(run.intervals, begin, end, state.interval);
    Largest largest;
    if (!state.active) return largest;
    STRATA_UNROLL
    for (int j = 0; j < kGroups; ++j) {
      LaneGroup& group = state.groups[j];
      GroupPlace& place = group.place;
      place.first = begin + (j * kWarp + lane) * kGroup;
      group.members = shape.members_from(place.first);
      place.treatments = treatments_of<kGroup>(run.intervals, place.first, group.members, state.interval);
      place.whole = shape.aligned && place.treatments.updated == shape.kAll;
      update_group(block, group);
      add_largest(group, largest);
    }
    return largest;
  }

  STRATA_HOST_DEVICE void finish(std::int64_t block, int lane, const Lane& state, Largest largest) const {
    if (!state.active) return;
    store_moment<&encode_signed>(0, block, lane, state, largest.first);
    if (moments > 1) store_moment<&encode_not_negative>(1, block, lane, state, largest.second);
  }

 private:
  static constexpr std::int64_t kBlock = static_cast<std::int64_t>(kScaleBlock);
  static_assert(kBlock == kWarp * kGroup * kGroups, "a block fills a warp");

  STRATA_HOST_DEVICE static void add_largest(const LaneGroup& group, Largest& largest) {
    const auto larger = [](std::uint32_t a, float value) {
      const std::uint32_t b = float_bits(value) & 0x7fffffffu;
      return a > b ? a : b;
    };
    STRATA_UNROLL
    for (int k = 0; k < kGroup; ++k) {
      if ((group.members >> k & 1u) == 0) continue;
      largest.first = larger(largest.first, group.moments[0][k]);
      largest.second = larger(largest.second, group.moments[1][k]);
    }
  }

  STRATA_HOST_DEVICE bool whole_codes(const LaneGroup& group) const {
    return shape.aligned && group.members == shape.kAll;
  }

  STRATA_HOST_DEVICE void update_group(std::int64_t block, LaneGroup& group) const {
    Elements<kGroup> elements = {};
    Storage::load(run, group.place, elements);
    load_moment<&decode_signed>(0, block, group, elements);
    if (moments > 1) load_moment<&decode_not_negative>(1, block, group, elements);
    load_grad(run, group.place, elements);
    update(run, group.place.treatments, elements);
    Storage::store(run, group.place, elements);
    STRATA_UNROLL
    for (int k = 0; k < kGroup; ++k) {
      group.moments[0][k] = elements.moments[0][k];
      group.moments[1][k] = elements.moments[1][k];
    }
  }

  template <float (*kDecode)(std::uint8_t, float)>
  STRATA_HOST_DEVICE void load_moment(int k, std::int64_t block, const LaneGroup& group,
                                      Elements<kGroup>& elements) const {
    Group<std::uint8_t, kGroup> codes;
    codes.load(static_cast<const std::uint8_t*>(run.moments[k]) + group.place.first, group.members, whole_codes(group));
    const float scale = run.scales[k][block];
    STRATA_UNROLL
    for (int i = 0; i < kGroup; ++i) elements.moments[k][i] = kDecode(codes.values[i], scale);
  }

  template <std::uint8_t (*kEncode)(float, float)>
  STRATA_HOST_DEVICE void store_moment(int k, std::int64_t block, int lane, const Lane& state,
                                       std::uint32_t largest) const {
    const BlockScale scale = block_scale(largest);
    STRATA_UNROLL
    for (int j = 0; j < kGroups; ++j) {
      const LaneGroup& group = state.groups[j];
      Group<std::uint8_t, kGroup> codes;
      STRATA_UNROLL
      for (int i = 0; i < kGroup; ++i) codes.values[i] = kEncode(group.moments[k][i], scale.inverse);
      codes.store(static_cast<std::uint8_t*>(run.moments[k]) + group.place.first, group.members, whole_codes(group));
    }
    if (lane == 0) run.scales[k][block] = scale.stored;
  }
};

}  // namespace strata::kernels
